/** The model as all live rollouts share it: one queue, one set of limits and defaults, one list of who waits. */
import type { Chat } from "../chat/types.ts";
import { openSession, type RolloutSession } from "./rollout-session.ts";
import type { SamplingDefaults, SamplingLimits } from "./sample-limits.ts";
import { createSampleQueue, type SampleQueue, type SampleSource } from "./sample-queue.ts";
import type { TrajectoryGrouping } from "./to-trajectories.ts";

/** Which model call a seed is for. `attempt` is 0 unless the rollout is being retried. */
export interface CallIdentity {
  taskId: string;
  rollout: number;
  attempt: number;
  /** Model calls of this attempt before this one. */
  turn: number;
}

export interface SamplingClientOptions {
  sampler: SampleSource;
  chat: Chat;
  defaults: SamplingDefaults;
  limits: SamplingLimits;
  seedFor: (call: CallIdentity) => number;
  /** Milliseconds a model call waits at most for other rollouts to make theirs. Default 20. */
  flushMs?: number;
  /** Of clients whose rollouts run at the same time, so that their calls are made together. Default: one of its own. */
  queue?: SampleQueue;
  /** Default: one trajectory a role. */
  grouping?: TrajectoryGrouping;
}

/** One line of what live rollouts wait for. */
interface WaitingRollout {
  taskId: string;
  rollout: number;
  /** `"the model"`, else the stage that its own code is in: `"workflow"`, `"prompt"`, `"reward"`, ... */
  what: string;
  seconds: number;
}

export interface SessionOptions extends Omit<CallIdentity, "turn"> {
  /** Position of the task among those that run together. */
  order: number;
  /** Aborts the session's model calls; absent: each is aborted by its own signal alone. */
  signal?: AbortSignal;
  /** False: calls are answered but not kept, for sessions without end. Default true. */
  keepSteps?: boolean;
  /** Model calls that each role may make; default: any number. */
  maxSteps?: number;
}

export interface SamplingClient {
  open(options: SessionOptions): RolloutSession;
  /** Says that more sessions are about to be opened, so that the first ones are not sampled without them. */
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
      const waiting = [...live].map(({ session, ...who }) => ({ ...who, ...session.waitingFor() }));
      return waiting.sort((left, right) => right.seconds - left.seconds);
    },
  };
}
