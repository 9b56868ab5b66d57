/** The seed of a model call, so that a resumed run samples what the uninterrupted one would have. */
import { deriveSeed } from "../random.ts";
import type { CallIdentity } from "./sampling-client.ts";

/**
 * For `createSamplingClient`: `rolloutSeed(seed, step)` gives each call `deriveSeed(seed, step, task, rollout, turn)`.
 * A retry draws anew: with the same seed it would only fail the same way again.
 */
export function rolloutSeed(...run: readonly (string | number)[]): (call: CallIdentity) => number {
  return ({ taskId, rollout, turn, attempt }) =>
    deriveSeed(...run, taskId, rollout, turn, ...(attempt === 0 ? [] : ["retry", attempt]));
}
