/** Sessions for a gateway without a run: the first call to a name opens its session. */
import { ownDistribution } from "../../backends/sampling-params.ts";
import type { Blind, Vision } from "../../chat/images/prepare-images.ts";
import type { Chat } from "../../chat/types.ts";
import { deriveSeed } from "../../random.ts";
import type { SampleSource } from "../../rollout/session/sample-queue.ts";
import { createSamplingClient } from "../../rollout/session/sampling-client.ts";
import type { SamplingDefaults, SamplingLimits } from "../../rollout/session/types.ts";
import type { OpenSession } from "./sessions.ts";

export interface PolicySessionsOptions {
  sampler: SampleSource;
  chat: Chat;
  /** How the model sees images; default: it reads only text. */
  vision?: Vision | Blind;
  limits: SamplingLimits;
  defaults?: Partial<SamplingDefaults>;
  /** Calls without a seed get one derived from this seed, their session and their position in it. */
  seed?: number;
}

/** The option `openUnknown` of `openGateway`: opens the sessions that agents name in their address. */
export function policySessions(options: PolicySessionsOptions) {
  const { sampler, chat, vision, limits, defaults, seed = 0 } = options;
  const client = createSamplingClient({
    sampler,
    chat,
    ...(vision === undefined ? {} : { vision }),
    limits,
    defaults: { ...ownDistribution, ...defaults },
    seedFor: ({ taskId, attempt, turn }) => deriveSeed(seed, "gateway", taskId, attempt, turn),
    // Calls are independent: waiting for others would gain nothing.
    flushMs: 0,
  });
  return ({ session: name, attempt }: { session: string; attempt: number }): OpenSession => {
    const session = client.open({ taskId: name, order: 0, rollout: 0, attempt, keepSteps: false });
    return { name, attempt, session, onForgotten: session.close };
  };
}
