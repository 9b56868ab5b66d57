import { expect, test, vi } from "vitest";
import { runCommandLine } from "../apps/cli/main.ts";
import { composeConfig } from "../config/compose.ts";
import { toFailure } from "../rollout/outcome.ts";
import { checkExperiment } from "../trainer/experiment.ts";
import { episodeMetrics } from "../trainer/record.ts";
import { toy } from "../trainer/toy-experiment.fixture.ts";
import { resolveWorkflow } from "../trainer/workflow.ts";
import type { Episode } from "../trajectories/types.ts";
import { UserError } from "./errors.ts";
import { mean, ownValue, percentile, spread, standardDeviation } from "./values.ts";

test("means, deviations, percentiles, spreads", () => {
  expect(mean([1, 2, 6])).toBe(3);
  expect(standardDeviation([1, 3])).toBe(1);
  expect(standardDeviation([1, 3], 1)).toBeCloseTo(Math.SQRT2);
  expect(standardDeviation([0.1, 0.1, 0.1])).toBe(0);
  expect(standardDeviation([5])).toBe(0);
  expect(standardDeviation([5], 1)).toBeNaN();
  expect(percentile([3, 1, 2], 50)).toBe(2);
  expect(percentile([0, 10], 90)).toBe(9);
  expect(percentile([7], 10)).toBe(7);
  expect(spread("x", [1, 3])).toEqual({ "x/mean": 2, "x/max": 3, "x/min": 1 });
  expect(spread("x", [])).toEqual({});
});

const words = ["toString", "constructor", "__proto__", "hasOwnProperty", "valueOf"];

test.each(words)("%s is an ordinary name, not a property of Object.prototype", async (word) => {
  expect(ownValue<unknown>({}, word)).toBeUndefined();
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
  expect(ownValue(episodeMetrics([episode, episode]), `batch/${word}`)).toBe(2);
  using _errors = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  expect(await runCommandLine([word])).toBe(2);
  expect(await runCommandLine(["config", word])).toBe(2);
});
