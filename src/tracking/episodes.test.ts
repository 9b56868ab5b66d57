import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { sampleEpisode, sampleStep, sampleTrajectory } from "../trajectories/sample-episodes.fixture.ts";
import { logEpisodes, readEpisode } from "./episodes.ts";
import { toJson } from "./json-lines.ts";

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

const directory = temporaryFolder("episode-log");

const read = (folder: string, file: string) => JSON.parse(readFileSync(join(folder, file), "utf8"));

it("writes a readable file per episode and a summary, and replaces a step that is logged again", () => {
  const row = { question: "?", answer: 4 };
  const episodes = [sampleEpisode("a:0", { correct: true, row }), sampleEpisode("a:1"), sampleEpisode("b/c:0")];
  const at = { mode: "train", step: 3, epoch: 1 } as const;
  logEpisodes(directory, at, episodes);
  const shuffled = { answer: 4, question: "?" };
  const folder = logEpisodes(directory, at, [{ ...episodes[0]!, row: shuffled }, ...episodes.slice(1)]);
  expect(folder).toBe(join(directory, "episodes", "train_step_3_epoch_1"));

  const summary = read(folder, "batch_summary.json");
  expect(summary).toMatchObject({ training_step: 3, epoch: 1, mode: "train", num_episodes: episodes.length });
  expect(readdirSync(folder).sort()).toEqual([...summary.episode_files, "batch_summary.json"].sort());

  const [first] = episodes;
  const file = read(folder, summary.episode_files[0]);
  expect(file).toMatchObject({ episode_id: first!.id, task: row, is_correct: first!.correct });
  expect(file.trajectories[0].steps[0].model_response).toBe(first!.trajectories[0]!.steps[0]!.text);
  expect(JSON.stringify(file)).not.toContain("logprobs");
});
