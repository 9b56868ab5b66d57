/** Estimators and losses train a tiny Llama through the local engine: one worker, a policy of its own each. */
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { singleTurn } from "../agents/workflows.ts";
import type { Engine } from "../backends/engine.ts";
import { openLocalEngine } from "../backends/local/engine.ts";
import { makeTinyModel } from "../base/python.fixture.ts";
import { loadChat } from "../chat/chat.ts";
import type { Chat } from "../chat/types.ts";
import { generated } from "../data/dataset.ts";
import { nightly } from "../nightly.fixture.ts";
import type { Experiment } from "./experiment.ts";
import { temporaryFolders } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";
import { estimatorRuns, lossRuns, type NamedRun, rewardTable } from "./update.fixture.ts";

const { root, newFolder } = temporaryFolders("every-algorithm");
const table = rewardTable();
let opened: { engine: Engine; chat: Chat };

beforeAll(async () => {
  const model = await makeTinyModel(join(root, "model"));
  const engine = await openLocalEngine({ model, device: "cpu", dtype: "float32", threads: 1 });
  opened = { engine, chat: loadChat(engine.model.directory) };
});
afterAll(async () => {
  await opened?.engine.close();
  table.print();
});

/** Rewards small letters. */
const experiment: Experiment<{ index: number }> = {
  train: generated("toy", 256, (index) => ({ index })),
  workflow: singleTurn<{ index: number }>({
    prompt: ({ index }) => `say ${index}`,
    reward: (_row, { text }) => [...text].filter((letter) => letter >= "a" && letter <= "z").length / 8,
  }),
  config: {
    model: { lora_rank: 4, train_unembed: true },
    rllm: {
      rollout: { n: 8 },
      trainer: { total_batches: 12, logger: [], save_freq: 0, test_freq: 0 },
      critic: { learning_rate: 0.02 },
    },
    training: { learning_rate: 0.015, num_minibatches: 2, ppo_epochs: 2 },
    data: { train_batch_size: 4, max_response_length: 8 },
  },
};

/** The greedy reply is often better than every sampled one, and then little is learned. */
const gently: Readonly<Record<string, string[]>> = {
  remax: ["training.learning_rate=0.005", "rllm.trainer.total_batches=24"],
};

async function rise(label: string, overrides: readonly string[]): Promise<number> {
  const folder = `rllm.trainer.run_dir=${newFolder()}`;
  return table.add(label, await train(experiment, { engine: opened, overrides: [folder, ...overrides] }));
}

/** With a critic, with token concentrations, and with a mark on tokens of the whole batch; update.test.ts runs all. */
const few = ["gae", "optimal_token_baseline", "clip_cov"];
const chosen = (runs: readonly NamedRun[]) => runs.filter(([name]) => nightly || few.includes(name));

describe("a tiny Llama learns", () => {
  it.each(chosen(estimatorRuns))("by the estimator %s", async (name, overrides) => {
    expect(await rise(`estimator ${name}`, [...overrides, ...(gently[name] ?? [])])).toBeGreaterThan(0.15);
  });

  it.each(chosen(lossRuns))("by the loss %s", async (name, overrides) => {
    expect(await rise(`loss ${name}`, overrides)).toBeGreaterThan(0.15);
  });
});
