import { expect, test, vi } from "vitest";
import { resolveWorkflow } from "./agents/named/resolve-workflow.ts";
import { runCommandLine } from "./cli/run-command-line.ts";
import { composeConfig } from "./config/compose.ts";
import { UserError } from "./errors.ts";
import { own } from "./own.ts";
import { toFailure } from "./rollout/attempt/failures.ts";
import { checkExperiment } from "./trainer/opening/check-experiment.ts";
import { toy } from "./trainer/toy-experiment.fixture.ts";
import { episodeMetrics } from "./trajectories/metrics.ts";
import type { Episode } from "./trajectories/types.ts";

const words = ["toString", "constructor", "__proto__", "hasOwnProperty", "valueOf"];

test.each(words)("%s is an ordinary name, not a property of Object.prototype", async (word) => {
  expect(own<unknown>({}, word)).toBeUndefined();
  expect(toFailure(new Error("no"), word).boundary).toBe("workflow");
  const experiment = Object.defineProperty({ ...toy() }, word, { value: () => {}, enumerable: true });
  expect(() => checkExperiment(experiment)).toThrow(UserError);
  for (const key of ["rllm.workflow.name", "rllm.agent.name", "rllm.env.name"]) {
    const { workflow: _, ...parts } = toy();
    const named = ["rllm.workflow.name=multi_turn_workflow", "rllm.env.name=math", `${key}=${word}`];
    const { config } = composeConfig({ overrides: named });
    await expect(resolveWorkflow(parts, config.rllm)).rejects.toBeInstanceOf(UserError);
  }
  const episode: Episode = {
    ...{ id: "t:0", taskId: "t", rollout: 0, trajectories: [], termination: "env_done", correct: null },
    ...{ metrics: Object.fromEntries([[word, 2]]), retries: 0, seconds: 0 },
  };
  expect(own(episodeMetrics([episode, episode]), `batch/${word}`)).toBe(2);
  using _errors = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  expect(await runCommandLine([word])).toBe(2);
  expect(await runCommandLine(["config", word])).toBe(2);
});
