import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import type { Workflow } from "../agents/types.ts";
import { packValues, type TokenValues } from "../tracking/json-lines.ts";
import type { Episode, Trajectory } from "../trajectories/types.ts";
import { distributions } from "./record.ts";
import { openToy, type ToyRow, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

const trajectory = (reward: number | null, ...lengths: number[]) =>
  ({ reward, steps: lengths.map((length) => ({ tokens: new Array(length).fill(1) })) }) as unknown as Trajectory;
const entropy = (...values: number[]) => ({ entropy: packValues(Float32Array.from(values)) }) as TokenValues;

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

const { newFolder } = temporaryFolders("step-time");

/** Milliseconds that each validation takes at least. */
const pause = 60;

const slowToValidate: Workflow<ToyRow> = async (_task, { model, purpose }) => {
  if (purpose === "validate") await sleep(pause);
  const { text } = await model.chat([{ role: "user", content: "b" }]);
  return [...text].filter((letter) => letter === "a").length / 4;
};

describe("time/step covers everything up to the next step", () => {
  it.each([
    ["synchronous", {}],
    ["asynchronous", { async_training: { enable: true, mini_batch_size: 4 } }],
  ])("in %s training: the laps add up to it, and the steps to the run", async (_name, rllm) => {
    const experiment = toy({ rllm: { ...rllm, trainer: { test_freq: 2, save_freq: 1 } } }, undefined, slowToValidate);
    const start = performance.now();
    const { history } = await train(experiment, {
      engine: openToy(),
      overrides: [`rllm.trainer.run_dir=${newFolder()}`],
    });
    const seconds = (performance.now() - start) / 1000;
    expect(history).toHaveLength(6);
    for (const { step, metrics } of history) {
      const { "time/step": whole = Number.NaN, ...others } = metrics;
      const laps = Object.entries(others).filter(([name]) => name.startsWith("time/"));
      expect(laps.reduce((sum, [, lap]) => sum + lap, 0)).toBeCloseTo(whole, 9);
      expect(laps.map(([name]) => name)).toEqual(expect.arrayContaining(["time/update", "time/record"]));
      // Validation follows steps 2, 4 and 6, saving every step; both count for the step after.
      if (step === 3 || step === 5) expect(metrics["time/validation"]).toBeGreaterThanOrEqual(pause / 1000);
      if (step > 1) expect(metrics["time/save"]!).toBeGreaterThan(0);
    }
    const sum = history.reduce((total, { metrics }) => total + metrics["time/step"]!, 0);
    expect(sum).toBeLessThan(seconds);
  });
});
