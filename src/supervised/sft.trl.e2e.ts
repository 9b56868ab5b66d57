/** Losses and gradient norms of the first steps, compared with TRL's trainers on the same model and rows (`scripts/proofs/recorders`). */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Engine } from "../backends/engine.ts";
import { openLocalEngine } from "../backends/local/engine.ts";
import { makeTinyModel } from "../base/python.fixture.ts";
import { loadChat } from "../chat/chat.ts";
import type { Chat } from "../chat/types.ts";
import type { ConfigInput } from "../config/schema.ts";
import { fromRows } from "../data/dataset.ts";
import type { Experiment } from "../trainer/experiment.ts";
import { temporaryFolders } from "../trainer/toy-experiment.fixture.ts";
import { train } from "../trainer/train.ts";
import { dpo } from "./dpo.ts";
import { sft } from "./sft.ts";

interface Run {
  lossType: string;
  steps: { loss: number; gradNorm: number }[];
}
type Rows = Record<string, unknown>[];
interface TrlRecord {
  sft: (Run & { name: string; rows: Rows })[];
  dpo: { rows: Rows; runs: (Run & { beta: number; label_smoothing?: number })[] };
}
const file = new URL("./trl.fixture.json", import.meta.url);
const record = JSON.parse(readFileSync(file, "utf8")) as TrlRecord;

const { root, newFolder } = temporaryFolders("trl");
let opened: { engine: Engine; chat: Chat };

beforeAll(async () => {
  const model = await makeTinyModel(join(root, "model"));
  const engine = await openLocalEngine({ model, device: "cpu", dtype: "float32", threads: 1 });
  opened = { engine, chat: loadChat(engine.model.directory) };
});
afterAll(async () => {
  await opened?.engine.close();
});

const config: ConfigInput = {
  model: { lora_rank: 0 },
  rllm: { trainer: { logger: [], save_freq: 0, plot_every: 0 } },
  training: { learning_rate: 3e-3, lr_schedule: "constant" },
  data: { train_batch_size: 4, shuffle: false },
};

async function compare(experiment: Experiment<unknown>, { steps }: Run, overrides: readonly string[]): Promise<void> {
  const folder = `rllm.trainer.run_dir=${newFolder()}`;
  const { history } = await train(experiment, { engine: opened, overrides: [folder, ...overrides] });
  expect(history).toHaveLength(steps.length);
  for (const [index, { loss, gradNorm }] of steps.entries()) {
    const { metrics } = history[index]!;
    expect(Math.abs(metrics["actor/loss"]! - loss)).toBeLessThan(1e-5 * Math.max(1, Math.abs(loss)));
    expect(Math.abs(metrics["actor/grad_norm"]! - gradNorm)).toBeLessThan(1e-4 * gradNorm + 1e-6);
  }
}

describe("TRL's losses and gradient norms", () => {
  it.each(record.sft)("sft: $name", async ({ rows, ...run }) => {
    await compare(sft({ data: fromRows("rows", rows), config }), run, [`sft.loss_type=${run.lossType}`]);
  });

  it.each(record.dpo.runs)("dpo: $lossType", async (run) => {
    const { lossType, beta, label_smoothing: smoothing } = run;
    const overrides = [`dpo.loss_type=${lossType}`, `dpo.beta=${beta}`];
    if (smoothing !== undefined) overrides.push(`dpo.label_smoothing=${smoothing}`);
    await compare(dpo({ data: fromRows("pairs", record.dpo.rows), config }), run, overrides);
  });
});
