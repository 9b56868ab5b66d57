/** Examples, then a teacher, then rewards: a chain for a task that rewards alone do not teach. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import type { Engine } from "../backends/engine.ts";
import type { ConfigInput } from "../config/schema.ts";
import { fromRows } from "../data/from-rows.ts";
import { tabularEngine } from "../testing/index.ts";
import { type Stage, trainStages } from "../trainer/stages.ts";
import { metricLines, openToy, temporaryFolders, toy } from "../trainer/toy-experiment.fixture.ts";
import { train } from "../trainer/train.ts";
import { sft } from "./sft.ts";

const { newFolder } = temporaryFolders("chain");

/** The toy engine, with a teacher that prefers "a" after any letter. */
function engineWithTeacher() {
  const { engine, chat } = openToy();
  const [wanted = 0] = chat.encode("a");
  const teacher = tabularEngine({ alphabet: "abc", logit: (next) => (next === wanted ? 4 : 0) });
  const withTeacher: Engine = {
    ...engine,
    capabilities: { ...engine.capabilities, otherModels: true },
    createLearner: ({ model, ...spec }) => (model === undefined ? engine : teacher).createLearner(spec),
  };
  return { engine: withTeacher, chat };
}

/** One of 4,096 replies of the untrained model. */
const solved = (text: string) => Number(text === "aaaa");
const trainer = { logger: [], save_freq: 1, test_freq: 0, plot_every: 0 };

function stages(): Stage[] {
  const messages = [
    { role: "user", content: "b" },
    { role: "assistant", content: "aab" },
  ];
  const examples: ConfigInput = {
    model: { lora_rank: 0 },
    rllm: { trainer },
    training: { learning_rate: 0.1 },
    data: { train_batch_size: 4 },
  };
  const taught: ConfigInput = {
    rllm: { rollout: { n: 1 }, trainer: { ...trainer, save_freq: 4, total_batches: 9 } },
    data: { train_batch_size: 16 },
    distillation: { enabled: true, teacher_models: { strong: { model_path: "./prefers-a" } } },
  };
  return [
    { name: "sft", experiment: sft({ data: fromRows("rows", new Array(12).fill({ messages })), config: examples }) },
    { name: "distillation", experiment: toy(taught, solved) },
    { name: "rl", experiment: toy({ rllm: { trainer: { ...trainer, total_batches: 6 } } }, solved) },
  ];
}

it("learns what rewards alone do not, and is not repeated when it is run again", { timeout: 60_000 }, async () => {
  const alone = await train(toy({ rllm: { trainer: { ...trainer, total_batches: 6 } } }, solved), {
    engine: engineWithTeacher(),
    overrides: [`rllm.trainer.run_dir=${newFolder()}`],
  });
  expect(alone.history.map(({ metrics }) => metrics["reward/mean"])).toEqual(new Array(6).fill(0));

  const folder = newFolder();
  const summaries = await trainStages(folder, stages(), { engine: engineWithTeacher() });
  const [imitated, taught, rewarded] = summaries.map(({ history }) => history.map(({ metrics }) => metrics));
  expect(imitated!.at(-1)!["sft/nll"]).toBeLessThan(imitated![0]!["sft/nll"]!);
  expect(taught!.at(-1)!["distillation/teacher_kl"]).toBeLessThan(0.5 * taught![0]!["distillation/teacher_kl"]!);
  expect(rewarded![0]!["reward/mean"]).toBeGreaterThan(0);
  expect(rewarded!.at(-1)!["reward/mean"]).toBeGreaterThan(rewarded![0]!["reward/mean"]!);

  const lines = () => ["1-sft", "2-distillation", "3-rl"].map((name) => metricLines(join(folder, name)));
  const before = lines();
  await trainStages(folder, stages(), { engine: engineWithTeacher() });
  expect(lines()).toEqual(before);
  expect(readFileSync(join(folder, "3-rl", "config.yaml"), "utf8")).not.toContain("prefers-a");
});
