import { expect, it } from "vitest";
import { packValues, type StepTraining } from "../../tracking/run-folder/token-values.ts";
import type { Episode, Trajectory } from "../../trajectories/types.ts";
import { distributions } from "./distributions.ts";

const trajectory = (reward: number | null, ...lengths: number[]) =>
  ({ reward, steps: lengths.map((length) => ({ tokens: new Array(length).fill(1) })) }) as unknown as Trajectory;
const entropy = (...values: number[]) => ({ entropy: packValues(Float32Array.from(values)) }) as StepTraining;

it("has a length of each reply, a reward of each trajectory and an entropy of each trained token", () => {
  const [trained, constant, unknown] = [trajectory(1, 2, 1), trajectory(0, 3), trajectory(null, 4)];
  const episodes = [{ trajectories: [trained, constant] }, { trajectories: [unknown] }] as unknown as Episode[];
  const trainings = new Map([
    [trained, [entropy(0.5, 0.25), null]],
    [constant, [entropy(2, 2, 2)]],
  ]);
  const found = { response_length: [2, 1, 3, 4], reward: [1, 0] };
  expect(distributions(episodes, trainings)).toEqual({ ...found, entropy: [0.5, 0.25, 2, 2, 2] });
  expect(distributions(episodes, undefined)).toEqual({ ...found, entropy: [] });
});
