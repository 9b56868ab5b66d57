import { expect, it } from "vitest";
import { sampleEpisode, sampleStep, sampleTrajectory } from "../../trajectories/sample-episodes.fixture.ts";
import { toJson } from "./json-lines.ts";
import { readEpisode } from "./read-episode.ts";

it("reads back what was written: typed arrays, and numbers that JSON does not have", () => {
  const steps = [
    sampleStep([1, 2], [3, 4], {
      ...{ policyVersion: 3, tokenVersions: Int32Array.of(2, 3), text: "NaN", reward: Number.NEGATIVE_INFINITY },
      ...{ logprobs: Float32Array.of(-0.1, Number.NaN), advantage: [0.5, Number.NaN] },
      messages: [{ role: "user", content: "Infinity" }],
    }),
    sampleStep([1], [2], { advantage: 0.25, reward: 1 / 3 }),
  ];
  const episode = sampleEpisode("sums/1:2", {
    trajectories: [sampleTrajectory({ steps, reward: Number.NaN, instance: 1 }), sampleTrajectory({ reward: null })],
    metrics: { turns: 2, broken: Number.NaN },
    failure: { kind: "reward", boundary: "reward", message: "no", stack: "at" },
  });
  expect(readEpisode(toJson(episode))).toEqual(episode);
});
