import { expect, test } from "vitest";
import { sampleEpisode, sampleTrajectory } from "../trajectories/sample-episodes.fixture.ts";
import type { FailureKind } from "../trajectories/types.ts";
import { validationMetrics } from "./validate.ts";

const graded = (id: string, reward: number | null) =>
  sampleEpisode(id, { trajectories: [sampleTrajectory({ reward })] });
const failed = (id: string, kind: FailureKind) =>
  sampleEpisode(id, { trajectories: [], failure: { kind, boundary: "workflow", message: "no" } });

test("a validation counts unknown rewards and failed rollouts", () => {
  const episodes = [graded("t/0:0", 1), graded("t/0:1", 0), graded("t/1:0", null), failed("t/1:1", "agent")];
  expect(validationMetrics(episodes, "sums", 2)).toEqual({
    "val/reward": 0.5,
    "val/sums/reward": 0.5,
    "val/sums/pass@1": 0.5,
    "val/sums/pass@2": 1,
    "val/unknown": 2,
    "val/failed": 1,
    "val/failures/agent": 1,
  });
  expect(validationMetrics([failed("t/0:0", "reward")], "sums", 1)).toEqual({
    "val/unknown": 1,
    "val/failed": 1,
    "val/failures/reward": 1,
  });
});
