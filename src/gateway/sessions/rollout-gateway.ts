/** The gateway for rollouts: each attempt is a session, and the trace store learns how it ended. */
import type { OpenedGateway, RolloutGateway } from "../../rollout/attempt/run-attempt.ts";
import { labelOf } from "../../rollout/to-episode.ts";
import type { Gateway } from "../gateway.ts";
import { patchFetch } from "./ambient.ts";

export interface RolloutGatewayOptions {
  /** Prefix of session names, e.g. `"train-17/"`, because `"{task}:{rollout}"` repeats in every epoch. */
  prefix: string;
  /** The run's own sampling parameters replace the agents'. */
  enforceSampling: boolean;
  metadata?: Readonly<Record<string, unknown>>;
}

export function rolloutGateway(gateway: Gateway, options: RolloutGatewayOptions): RolloutGateway {
  const { prefix, enforceSampling, metadata = {} } = options;
  // Must run before a workflow creates a client with `gatewayBaseURL()`, because clients keep the `fetch` that they find.
  patchFetch();
  return {
    open({ taskId, rollout, attempt, purpose }, session, signal): OpenedGateway {
      const name = `${prefix}${taskId}:${rollout}`;
      const entry = gateway.open({ name, attempt, session, enforceSampling });
      const running = {
        session: name,
        attempt,
        startedMs: Date.now(),
        taskId,
        metadata: { ...metadata, purpose, rollout },
        endedMs: null,
        termination: null,
        reward: null,
        correct: null,
        failure: null,
      };
      gateway.store?.session(running);
      return {
        access: {
          baseURL: entry.baseURL,
          anthropicBaseURL: entry.anthropicBaseURL,
          apiKey: entry.apiKey,
          as: (role, instance) => entry.as(labelOf({ name: role, instance })),
          separateSideCalls: entry.separateSideCalls,
          end: entry.close,
          result: () => entry.result(signal),
        },
        close(ended) {
          entry.close();
          gateway.store?.session({
            ...running,
            endedMs: Date.now(),
            termination: ended?.termination ?? "stopped",
            reward: ended?.outcome?.reward ?? null,
            correct: ended?.outcome?.correct ?? null,
            failure: ended?.failure?.message ?? null,
          });
        },
      };
    },
  };
}
