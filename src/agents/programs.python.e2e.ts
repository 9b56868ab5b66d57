import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { outputOf, startHone } from "../apps/cli/hone.fixture.ts";
import { makeTinyModel } from "../base/python.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { readEpisode } from "../tracking/episodes.ts";
import type { Step } from "../trajectories/types.ts";

const root = temporaryFolder("python-agent");

interface Recorded {
  base_url: string;
  calls: { roles: string[]; prompt: number[]; tokens: number[]; logprobs: number[] }[];
  reward: number;
}

const readLines = (file: string) => readFileSync(file, "utf8").trim().split("\n");

const asClientSaw = ({ messages, promptTokens, tokens, logprobs }: Step) => ({
  roles: messages.map(({ role }) => role),
  prompt: [...promptTokens],
  tokens: [...tokens],
  logprobs: [...logprobs],
});

it("trains a real model through an agent in Python, and the episodes hold what the agent sent and got", async () => {
  const model = await makeTinyModel(join(root, "model"));
  const folder = join(root, "run");
  const records = join(root, "records.jsonl");
  const args = ["train", "src/agents/python-agent.fixture.ts", `model.name=${model}`, `rllm.trainer.run_dir=${folder}`];
  await outputOf(startHone(args, { env: { ...process.env, HONE_RECORDS: records } }));

  const recorded = new Map(
    readLines(records).map((line) => {
      const { base_url, ...rest } = JSON.parse(line) as Recorded;
      return [decodeURIComponent(/\/s\/([^/]+)\//.exec(base_url)![1]!), rest];
    }),
  );
  const crashed: string[] = [];
  for (const [index, file] of readdirSync(join(folder, "episodes")).sort().entries()) {
    for (const episode of readLines(join(folder, "episodes", file)).map(readEpisode)) {
      const [trajectory] = episode.trajectories;
      const said = recorded.get(`train-${index + 1}/${episode.id}`);
      if (said === undefined) {
        crashed.push(episode.taskId);
        expect(trajectory).toMatchObject({ reward: 0, steps: [{}] });
        expect(episode).toMatchObject({
          termination: "error",
          correct: false,
          retries: 0,
          failure: { boundary: "workflow" },
        });
        expect(episode.failure!.message).toMatch(
          /ended with exit code 1; its standard error ends with\n[\s\S]*KeyError: 'answer'/,
        );
        continue;
      }
      expect(episode).toMatchObject({ termination: "env_done", metrics: { turns: 2 } });
      expect(trajectory!.reward).toBe(said.reward);
      expect(trajectory!.steps.map(asClientSaw)).toEqual(said.calls);
    }
  }
  expect(recorded.size).toBe(12);
  expect(crashed).toEqual(["toy/3", "toy/3", "toy/7", "toy/7"]);

  const metrics = readLines(join(folder, "metrics.jsonl")).map((line) => JSON.parse(line) as Record<string, number>);
  expect(metrics).toMatchObject(
    Array(2).fill({ "batch/failed_episodes": 2, "batch/failed_episodes_rewarded": 2, "batch/retries": 0 }),
  );
  expect(readFileSync(join(folder, "log.txt"), "utf8")).toMatch(/rollout \d of toy\/3: stderr: about to look it up/);
});
