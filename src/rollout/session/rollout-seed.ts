/** Seeds of model calls: a resumed run samples what the uninterrupted one would have. */
import { deriveSeed } from "../../random.ts";
import type { CallIdentity } from "./types.ts";

/**
 * For `createSamplingClient`: `rolloutSeed(seed, step)` gives each call `deriveSeed(seed, step, task, rollout, turn)`.
 * A retry gets another seed; with the same one it would fail the same way.
 */
export function rolloutSeed(...run: readonly (string | number)[]): (call: CallIdentity) => number {
  return ({ taskId, rollout, turn, attempt }) =>
    deriveSeed(...run, taskId, rollout, turn, ...(attempt === 0 ? [] : ["retry", attempt]));
}
