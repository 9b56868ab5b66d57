/** Opens sessions for rollouts that share one queue, and lists what the live ones wait for. */

import { deriveSeed } from "../../random.ts";
import { openSession } from "./open-session.ts";
import { createSampleQueue } from "./sample-queue.ts";
import type { CallIdentity, RolloutSession, SamplingClientOptions, SessionOptions } from "./types.ts";

/** What a live rollout waits for. */
interface WaitingRollout {
  taskId: string;
  rollout: number;
  /** `"the model"`, or the stage of its own code: `"workflow"`, `"prompt"`, `"reward"`, ... */
  what: string;
  seconds: number;
}

export interface SamplingClient {
  open(options: SessionOptions): RolloutSession;
  /** Announces more sessions, so that the first ones are not sampled without them. Returns the function that ends it. */
  hold(): () => void;
  /** The live rollouts, the longest waiting first. */
  waitingFor(): WaitingRollout[];
}

export function createSamplingClient(options: SamplingClientOptions): SamplingClient {
  const queue = options.queue ?? createSampleQueue(options.sampler, options.flushMs);
  const live = new Set<{ taskId: string; rollout: number; session: RolloutSession }>();

  return {
    open(identity) {
      const participant = queue.join([identity.order, identity.rollout]);
      const session = openSession(options, identity, participant, () => live.delete(entry));
      const entry = { taskId: identity.taskId, rollout: identity.rollout, session };
      live.add(entry);
      return session;
    },
    hold: queue.hold,
    waitingFor() {
      const waiting = [...live].map(({ session, ...rollout }) => ({ ...rollout, ...session.waitingFor() }));
      return waiting.sort((left, right) => right.seconds - left.seconds);
    },
  };
}

/**
 * For `createSamplingClient`: `rolloutSeed(seed, step)` gives each call `deriveSeed(seed, step, task, rollout, turn)`.
 * A retry gets another seed; with the same one it would fail the same way.
 */
export function rolloutSeed(...run: readonly (string | number)[]): (call: CallIdentity) => number {
  return ({ taskId, rollout, turn, attempt }) =>
    deriveSeed(...run, taskId, rollout, turn, ...(attempt === 0 ? [] : ["retry", attempt]));
}
