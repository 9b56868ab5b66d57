/** Reward models beside a tiny Llama: they train it, and score like a server that runs transformers. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, it } from "vitest";
import { singleTurn } from "../../agents/single-turn.ts";
import type { Reward } from "../../agents/types.ts";
import { generated } from "../../data/generated.ts";
import { preparePython } from "../../python/prepare.ts";
import { makeTinyModel, makeTinyRewardModel } from "../../python/run-python.fixture.ts";
import { remoteReward } from "../../rewards/remote/remote-reward.ts";
import { mean } from "../../statistics.ts";
import type { Experiment } from "../experiment.ts";
import { temporaryFolders } from "../toy-experiment.fixture.ts";
import { train } from "../train.ts";

interface Row {
  index: number;
}
const { root, newFolder, remove } = temporaryFolders("hone-reward-models-");
const letters = "abcdefghijklmnopqrstuvwxyz";
let model: string;
let planted: string;
let random: string;
let server: ChildProcess | undefined;

beforeAll(async () => {
  model = await makeTinyModel(join(root, "model"));
  planted = await makeTinyRewardModel(join(root, "likes-letters"), { preferred: letters });
  random = await makeTinyRewardModel(join(root, "random"));
});
afterAll(() => {
  server?.stdin?.end();
  remove();
});

const prompt = ({ index }: Row) => `${index}`;

function run(overrides: string[], reward?: Reward<Row>) {
  const experiment: Experiment<Row> = {
    train: generated("toy", 256, (index) => ({ index })),
    ...(reward ? { workflow: singleTurn({ prompt, reward }) } : { prompt }),
    config: {
      model: { name: model, lora_rank: 4, train_unembed: true },
      local: { device: "cpu", dtype: "float32", threads: 1 },
      rllm: {
        rollout: { n: 8 },
        trainer: { total_batches: 12, logger: [], save_freq: 0, test_freq: 0, run_dir: newFolder() },
      },
      training: { learning_rate: 0.015, num_minibatches: 2, ppo_epochs: 2 },
      data: { train_batch_size: 4, max_response_length: 8 },
    },
  };
  return train(experiment, { overrides });
}

it("a reward model with a planted preference trains the policy towards it, without a reward of the script", async () => {
  const { history } = await run([`rllm.reward.model=${planted}`, "rllm.reward.own_weight=0"]);
  const scores = history.map(({ metrics }) => metrics["batch/reward_model/likes-letters"] ?? Number.NaN);
  expect(mean(scores.slice(-2)) - mean(scores.slice(0, 2))).toBeGreaterThan(0.3);
  for (const [index, { metrics }] of history.entries()) {
    expect(metrics["reward/mean"]).toBeCloseTo(scores[index] ?? Number.NaN, 5);
    expect(metrics["batch/reward_model/failed"]).toBe(0);
  }
});

async function serve(): Promise<string> {
  const { python } = await preparePython();
  const script = fileURLToPath(new URL("../../../worker/tests/serve_reward_model.py", import.meta.url));
  server = spawn(python, [script, random], { stdio: ["pipe", "pipe", "inherit"] });
  const [line] = (await once(server.stdout!, "data")) as [Buffer];
  return `http://127.0.0.1:${Number(line)}`;
}

it("a reward model scores like a server that runs transformers, in LightRFT's format and in vLLM's", async () => {
  const url = await serve();
  const served = remoteReward<Row>({
    url,
    query: (row, reply) => JSON.stringify([{ role: "user", content: prompt(row) }, reply.message]),
  });
  // Each reward is the difference of the two scores.
  const weights = ["rllm.reward.model_weights=[-1]", "rllm.reward.own_weight=1"];
  const overrides = [`rllm.reward.model=[${random}]`, ...weights, "rllm.trainer.total_batches=2"];
  for (const engine of [[], ["rllm.reward.use_engine=true", `rllm.reward.engine_url=[${url}]`]]) {
    const { history } = await run([...overrides, ...engine], served);
    for (const { metrics } of history) {
      expect(Math.abs(metrics["batch/reward_model/random"] ?? 0)).toBeGreaterThan(0.01);
      for (const name of ["reward/mean", "reward/agent/min", "reward/agent/max"]) {
        expect(Math.abs(metrics[name] ?? Number.NaN), name).toBeLessThan(1e-3);
      }
    }
  }
});
