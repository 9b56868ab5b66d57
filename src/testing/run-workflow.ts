/** Runs a workflow with a scripted model as training does with a real one, for users' own tests. */
import type { Workflow } from "../agents/types.ts";
import { ownDistribution } from "../backends/sampling-params.ts";
import type { Task } from "../data/task.ts";
import { openGateway } from "../gateway/gateway.ts";
import { rolloutGateway } from "../gateway/sessions/rollout-gateway.ts";
import { type OnAgentError, runRollouts } from "../rollout/run-rollouts.ts";
import { createSamplingClient, rolloutSeed } from "../rollout/session/sampling-client.ts";
import type { Episode } from "../trajectories/types.ts";
import { type Script, scriptedSampler } from "./scripted-sampler.ts";

export interface RunWorkflowOptions<Row> {
  workflow: Workflow<Row>;
  rows: readonly Row[];
  /** The model's replies. */
  reply: Script;
  /** Rollouts per row. Default 1. */
  n?: number;
  purpose?: "train" | "validate";
  /** In characters, which are the scripted model's tokens. Both are unlimited by default. */
  maxPromptLength?: number;
  maxResponseLength?: number;
  /** Time limit of a rollout. Default 10. */
  timeoutSeconds?: number;
  /** Throw failures, with the row. Default true; false returns episodes with `failure`. */
  raiseOnError?: boolean;
  /** Called with each line that the workflow logs. */
  log?: (text: string) => void;
  /** Like `rllm.gateway.unenforceable`. Default `"refuse"`. */
  unenforceable?: "refuse" | "allow";
  /** Like `rllm.workflow.on_agent_error`. Default: `"fail"` with `raiseOnError`, else `"drop"`. */
  onAgentError?: OnAgentError;
}

/**
 * Runs a workflow on rows with replies from a function instead of a model.
 *
 * @returns episodes by row, then rollout
 *
 * @example
 * const [episode] = await runWorkflow({ workflow, rows: [{ left: 3, right: 8 }], reply: () => "8" });
 * expect(episode?.trajectories[0]?.reward).toBe(1);
 */
export async function runWorkflow<Row>(options: RunWorkflowOptions<Row>): Promise<Episode[]> {
  const { workflow, rows, reply, n = 1, purpose = "validate", timeoutSeconds = 10, raiseOnError = true } = options;
  const { maxPromptLength = Number.MAX_SAFE_INTEGER, maxResponseLength = Number.MAX_SAFE_INTEGER } = options;
  const { onAgentError = raiseOnError ? "fail" : "drop" } = options;
  const scripted = scriptedSampler(reply);
  const client = createSamplingClient({
    ...scripted,
    defaults: ownDistribution,
    limits: { maxPromptLength, maxResponseLength },
    seedFor: rolloutSeed(0),
  });
  const tasks: Task<Row>[] = rows.map((row, index) => ({ id: `row/${index}`, row, origin: `row ${index}` }));
  const gateway = await openGateway({
    chat: scripted.chat,
    vision: scripted.vision,
    model: "policy",
    unenforceable: options.unenforceable ?? "refuse",
  });
  try {
    return await runRollouts({
      tasks,
      n,
      workflow,
      client,
      purpose,
      timeoutSeconds,
      raiseOnError,
      onAgentError,
      gateway: rolloutGateway(gateway, { prefix: "", enforceSampling: purpose === "train" }),
      nParallelTasks: 256,
      onLog: ({ text }) => options.log?.(text),
      retryLimit: 0,
    });
  } finally {
    await gateway.close();
  }
}
