/** Reward models beside a tiny Llama: they train it, and score like a server that runs transformers. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { Reward } from "../agents/types.ts";
import { singleTurn } from "../agents/workflows.ts";
import { makeTinyModel, makeTinyRewardModel } from "../base/python.fixture.ts";
import { preparePython } from "../base/python.ts";
import { mean } from "../base/values.ts";
import { readLightRft } from "../config/lightrft/compose.ts";
import { generated } from "../data/dataset.ts";
import { nightly } from "../nightly.fixture.ts";
import { remoteReward } from "../rewards/remote.ts";
import type { Experiment } from "./experiment.ts";
import { temporaryFolders } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

interface Row {
  index: number;
}
const { root, newFolder } = temporaryFolders("reward-models");
const letters = "abcdefghijklmnopqrstuvwxyz";
let model: string;
let planted: string;
let random: string;
let serving: Promise<{ url: string; process: ChildProcess }> | undefined;

beforeAll(async () => {
  model = await makeTinyModel(join(root, "model"));
  planted = await makeTinyRewardModel(join(root, "likes-letters"), { preferred: letters });
  random = await makeTinyRewardModel(join(root, "random"));
});
afterAll(async () => {
  (await serving)?.process.kill();
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
  serving ??= startServer();
  return (await serving).url;
}

async function startServer() {
  const { python } = await preparePython();
  const script = fileURLToPath(new URL("../../worker/tests/serve_reward_model.py", import.meta.url));
  const process = spawn(python, [script, random], { stdio: ["pipe", "pipe", "inherit"] });
  const [line] = (await once(process.stdout!, "data")) as [Buffer];
  return { url: `http://127.0.0.1:${Number(line)}`, process };
}

// The next test compares the same two.
it.runIf(nightly)("a reward model scores like a server that runs transformers", async () => {
  const served = remoteReward<Row>({
    url: await serve(),
    query: (row, reply) => JSON.stringify([{ role: "user", content: prompt(row) }, reply.message]),
  });
  // Each reward is the difference of the two scores.
  const weights = ["rllm.reward.model_weights=[-1]", "rllm.reward.own_weight=1"];
  const overrides = [`rllm.reward.model=[${random}]`, ...weights, "rllm.trainer.total_batches=2"];
  const { history } = await run(overrides, served);
  for (const { metrics } of history) {
    expect(Math.abs(metrics["batch/reward_model/random"] ?? 0)).toBeGreaterThan(0.01);
    for (const name of ["reward/mean", "reward/agent/min", "reward/agent/max"]) {
      expect(Math.abs(metrics[name] ?? Number.NaN), name).toBeLessThan(1e-3);
    }
  }
});

it("LightRFT's flags: the same rewards by a worker, by an inference server and by a reward server", async () => {
  const url = await serve();
  const sizes = "--train_batch_size 8 --rollout_batch_size 4 --n_samples_per_prompt 2 --max_len 64 --prompt_max_len 48";
  const rest =
    "--generate_max_len 8 --lora_rank 4 local.device=cpu local.dtype=float32 local.threads=1 local.sampler.type=own";
  const more = "rllm.trainer.logger=[] rllm.trainer.total_batches=1 rllm.trainer.save_freq=0";
  const rewards: number[][] = [];
  for (const given of [
    `--reward_pretrain ${random}`,
    `--reward_pretrain ${random} --rm_use_engine rllm.reward.engine_url=[${url}] rllm.reward.batch_size=3`,
    `--remote_rm_url ${url}`,
  ]) {
    const line = `--pretrain ${model} ${sizes} ${rest} ${more} --save_path ${newFolder()} ${given}`;
    const { settings, overrides } = readLightRft(line.split(" "), { environment: {} });
    const experiment: Experiment<Row> = { train: generated("toy", 8, (index) => ({ index })), prompt };
    const { history } = await train(experiment, { translated: settings, overrides });
    rewards.push(["mean", "min", "max"].map((name) => history[0]?.metrics[`reward/agent/${name}`] ?? Number.NaN));
  }
  const [own = [], ...others] = rewards;
  expect(own[2]! - own[1]!).toBeGreaterThan(0.1);
  for (const other of others) {
    expect(Math.max(...other.map((reward, index) => Math.abs(reward - own[index]!)))).toBeLessThan(1e-3);
  }
});
