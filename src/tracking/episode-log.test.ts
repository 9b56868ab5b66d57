import { mkdtempSync, readdirSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, it } from "vitest";
import { removeFolder } from "../temporary-folder.fixture.ts";
import { sampleEpisode } from "../trajectories/sample-episodes.fixture.ts";
import { logEpisodes } from "./episode-log.ts";

const directory = mkdtempSync(join(tmpdir(), "hone-episode-log-"));
afterEach(() => removeFolder(directory));

const read = (folder: string, file: string) => JSON.parse(readFileSync(join(folder, file), "utf8"));

it("writes a readable file an episode and a summary, and replaces a step that is logged again", () => {
  const episodes = [sampleEpisode("a:0", { correct: true }), sampleEpisode("a:1"), sampleEpisode("b/c:0")];
  const at = { mode: "train", step: 3, epoch: 1 } as const;
  const row = (id: string) => ({ id, question: "?" });
  logEpisodes(directory, at, episodes, row);
  const folder = logEpisodes(directory, at, episodes, (id) => ({ question: "?", id }));
  expect(folder).toBe(join(directory, "episodes", "train_step_3_epoch_1"));

  const summary = read(folder, "batch_summary.json");
  expect(summary).toMatchObject({ training_step: 3, epoch: 1, mode: "train", num_episodes: episodes.length });
  expect(readdirSync(folder).sort()).toEqual([...summary.episode_files, "batch_summary.json"].sort());

  const [first] = episodes;
  const file = read(folder, summary.episode_files[0]);
  expect(file).toMatchObject({ episode_id: first!.id, task: row(first!.taskId), is_correct: first!.correct });
  expect(file.trajectories[0].steps[0].model_response).toBe(first!.trajectories[0]!.steps[0]!.text);
  expect(JSON.stringify(file)).not.toContain("logprobs");
});
