/** The gateway as rollouts use it: a session an attempt, whose end is told to the trace store. */
import type { OpenedGateway, RolloutGateway } from "../rollout/gateway-door.ts";
import { labelOf } from "../rollout/label.ts";
import { patchFetch } from "./ambient.ts";
import type { Gateway } from "./gateway.ts";

export interface RolloutGatewayOptions {
  /** Goes before a session's name, which is `"{task}:{rollout}"` and comes again in every epoch, e.g. `"train-17/"`. */
  prefix: string;
  /** The run's own sampling parameters win over those that agents ask for. */
  enforceSampling: boolean;
  metadata?: Readonly<Record<string, unknown>>;
}

export function rolloutGateway(gateway: Gateway, options: RolloutGatewayOptions): RolloutGateway {
  const { prefix, enforceSampling, metadata = {} } = options;
  // For workflows that ask for the ambient address and call it in one breath.
  patchFetch();
  return {
    open({ taskId, rollout, attempt, purpose }, session, signal): OpenedGateway {
      const name = `${prefix}${taskId}:${rollout}`;
      const entry = gateway.open({ name, attempt, session, enforceSampling });
      const startedMs = Date.now();
      const known = { session: name, attempt, startedMs, taskId, metadata: { ...metadata, purpose, rollout } };
      gateway.store?.session({
        ...known,
        ...{ endedMs: null, termination: null, reward: null, correct: null, failure: null },
      });
      return {
        access: {
          ...{ baseURL: entry.baseURL, anthropicBaseURL: entry.anthropicBaseURL, apiKey: entry.apiKey },
          as: (role, instance) => entry.as(labelOf({ name: role, instance })),
          result: () => entry.result(signal),
        },
        close(ended) {
          entry.close();
          gateway.store?.session({
            ...known,
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
