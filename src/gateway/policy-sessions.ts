/** Sessions for a gateway that stands alone: whoever calls by a new name has a session from then on. */
import type { Chat } from "../chat/types.ts";
import { deriveSeed } from "../random.ts";
import type { SamplingDefaults, SamplingLimits } from "../rollout/sample-limits.ts";
import type { SampleSource } from "../rollout/sample-queue.ts";
import { createSamplingClient } from "../rollout/sampling-client.ts";
import type { OpenSession } from "./sessions.ts";

export interface PolicySessionsOptions {
  sampler: SampleSource;
  chat: Chat;
  limits: SamplingLimits;
  defaults?: Partial<SamplingDefaults>;
  /** Calls that bring no seed of their own are sampled by one derived from it, their session and their position. */
  seed?: number;
}

/** @returns what `openGateway` takes as `openUnknown` */
export function policySessions(options: PolicySessionsOptions) {
  const { sampler, chat, limits, defaults, seed = 0 } = options;
  const client = createSamplingClient({
    ...{ sampler, chat, limits },
    defaults: { temperature: 1, topP: 1, topK: -1, minP: 0, ...defaults },
    seedFor: ({ taskId, attempt, turn }) => deriveSeed(seed, "gateway", taskId, attempt, turn),
    // Callers come when they come: waiting for others would gain nothing.
    flushMs: 0,
  });
  return ({ session: name, attempt }: { session: string; attempt: number }): OpenSession => {
    const session = client.open({ taskId: name, order: 0, rollout: 0, attempt, keepSteps: false });
    return { name, attempt, session, onForgotten: session.close };
  };
}
