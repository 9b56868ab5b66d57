/** A gateway over a scripted model, for tests: real HTTP, real clients, no weights. */
import { ownDistribution } from "../backends/engine-parts.ts";
import type { Chat } from "../chat/types.ts";
import type { SampleSource } from "../rollout/sample-queue.ts";
import { createSamplingClient } from "../rollout/session.ts";
import { type Script, scriptedSampler } from "../testing/scripted.ts";
import type { GatewayOptions } from "./gateway.ts";
import { openGateway } from "./gateway.ts";
import { openTraceStore } from "./traces/store.ts";

export interface TestGatewayOptions extends Partial<GatewayOptions> {
  reply: Script;
  limits?: { maxPromptLength: number; maxResponseLength: number };
  sampler?: SampleSource;
  /** The run's own sampling wins over the client's. */
  enforceSampling?: boolean;
}

export async function testGateway({ reply, limits, enforceSampling = false, sampler, ...options }: TestGatewayOptions) {
  const scripted = scriptedSampler(reply);
  const chat: Chat = options.chat ?? scripted.chat;
  const store = openTraceStore({ path: ":memory:" });
  const lines: string[] = [];
  const vision = options.vision ?? scripted.vision;
  const log = (line: string) => lines.push(line);
  const gateway = await openGateway({ chat, model: "policy", store, log, ...options, vision });
  const client = createSamplingClient({
    sampler: sampler ?? scripted.sampler,
    chat,
    vision,
    defaults: ownDistribution,
    limits: limits ?? { maxPromptLength: 10_000, maxResponseLength: 1000 },
    seedFor: ({ turn }) => turn,
    flushMs: 0,
  });
  const abort = new AbortController();
  const session = client.open({ taskId: "task", order: 0, rollout: 0, attempt: 0, signal: abort.signal });
  const entry = gateway.open({ name: "train-1/task:0", attempt: 0, session, enforceSampling });
  return {
    ...{ gateway, store, chat, client, session, entry, abort, lines },
    steps: () => session.trajectories().flatMap((trajectory) => trajectory.steps),
    async close() {
      await gateway.close();
      store.close();
    },
  };
}
