import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { beforeAll, describe, expect, it } from "vitest";
import { singleTurn } from "../agents/workflows.ts";
import { makeTinyModel } from "../base/python.fixture.ts";
import type { ConfigInput } from "../config/schema.ts";
import { generated } from "../data/dataset.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import type { Experiment } from "./experiment.ts";
import { train } from "./train.ts";

const root = temporaryFolder("async");
let model: string;

beforeAll(async () => {
  model = await makeTinyModel(join(root, "model"));
});

interface Row {
  index: number;
}
const share = (text: string) => [...text].filter((letter) => letter >= "a" && letter <= "z").length / 8;

/** Rewards small letters; the grader is slow, slower for some tasks than for others. */
function experiment(name: string, async_training: NonNullable<ConfigInput["rllm"]>["async_training"]): Experiment<Row> {
  return {
    train: generated("toy", 256, (index) => ({ index })),
    workflow: singleTurn<Row>({
      prompt: ({ index }) => `say ${index}`,
      reward: async ({ index }, reply) => {
        await sleep(50 * (index % 5));
        return share(reply.text);
      },
    }),
    config: {
      rllm: {
        rollout: { n: 4 },
        trainer: { total_batches: 12, logger: [], run_dir: join(root, name), save_freq: 0 },
        algorithm: { rollout_correction: { tis_mode: "token" } },
        async_training: { enable: true, mini_batch_size: 4, ...async_training },
      },
      model: { name: model, lora_rank: 4, train_unembed: true },
      training: { learning_rate: 0.02 },
      data: { max_response_length: 8 },
      local: { dtype: "float32", device: "cpu", threads: 1 },
    },
  };
}

describe("asynchronous training on the local engine", () => {
  it.each([
    ["whole", { staleness_threshold: 1 }],
    ["partial", { staleness_threshold: 1, partial_rollout: true, fwd_bwd_group_size: 2 }],
  ])("raises the reward of a real model, a batch ahead: %s rollouts", async (name, keys) => {
    const { exitCode, history } = await train(experiment(name, keys));
    const rewards = history.map(({ metrics }) => metrics["reward/mean"]!);
    const lags = history.map(({ metrics }) => metrics["async/staleness_max"]!);
    expect(exitCode).toBe(0);
    expect(rewards).toHaveLength(12);
    expect(rewards.at(-1)! - rewards[0]!).toBeGreaterThan(0.2);
    expect(lags).toContain(1);
    expect(Math.max(...lags)).toBe(1);
  });
});
