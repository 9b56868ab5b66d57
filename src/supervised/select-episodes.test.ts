import { expect, it } from "vitest";
import { singleTurn } from "../agents/single-turn.ts";
import { fromRows } from "../data/from-rows.ts";
import { trainStages } from "../trainer/stages.ts";
import { metricLines, openToy, temporaryFolders, toy } from "../trainer/toy-experiment.fixture.ts";
import { train } from "../trainer/train.ts";
import { dpo } from "./dpo.ts";
import { selectPairs, selectRows } from "./select-episodes.ts";
import { sft } from "./sft.ts";
import { taskFilter } from "./task-filter.ts";

const { newFolder } = temporaryFolders("select");

it.each([
  ["0 < avg < 1", true],
  ["avg>=0.5 and n_correct=1", true],
  ["1 <= n_correct", true],
  ["best = 1 and not worst = 0", false],
  ["pass@2 > 0.6 or n > 10", true],
  ["solved=true", true],
  ["", true],
])("the filter %s", (filter, expected) => {
  expect(taskFilter(filter)({ rewards: [1, 0, 0.5], solved: [true, false, false] })).toBe(expected);
});

it.each([
  ["average > 1", "is not a field of a task"],
  ["avg ~ 1", "does not compare"],
  ["avg > x", "is not a number"],
  ["avg >", "expected a value"],
])("the filter %s is refused", (filter, message) => {
  expect(() => taskFilter(filter)).toThrow(message);
});

it("the episodes of an evaluation are chosen among all attempts of its models", async () => {
  const output = newFolder();
  const evaluate = { candidates: [null], json: false, output };
  await train(toy(), { engine: openToy(), evaluate, overrides: ["rllm.rollout.n_val=3"] });
  expect(() => selectRows(output, { select: "all", kind: "train" })).toThrow("has no train episodes");
  const all = selectRows(output, { select: "all" });
  expect(all.counts).toMatchObject({ attempts: 24, tasks: 8 });
  expect(all.train).toHaveLength(24);
  expect(selectRows(output, { select: "best", maxPerTask: 1 }).train).toHaveLength(8);
});

it("best, correct and paired episodes of a run train the next runs of a chain", { timeout: 60_000 }, async () => {
  const folder = newFolder();
  const workflow = singleTurn<{ index: number }>({
    prompt: () => "b",
    reward: (_row, { text }) => Number(text.startsWith("a")),
  });
  const experiment = toy({ rllm: { trainer: { total_batches: 2 } } }, undefined, workflow);
  await train(experiment, { engine: openToy(), overrides: [`rllm.trainer.run_dir=${folder}`] });
  const all = selectRows(folder, { select: "all", kind: "train" });
  expect(all.train).toHaveLength(2 * 4 * 4);
  const correct = selectRows(folder, { select: "correct", kind: "train", dedup: true });
  expect(correct.train.length).toBeGreaterThan(0);
  for (const row of correct.train as { messages: { content: string }[] }[]) {
    expect(row.messages[0]).toMatchObject({ role: "user", content: "b" });
    expect(row.messages.at(-1)!.content).toMatch(/^a/);
  }
  const best = selectRows(folder, { select: "best", kind: "train", filter: "0 < avg < 1" });
  const pairs = selectPairs(folder, { select: "all", kind: "train" });
  expect(pairs.train).toHaveLength(best.train.length);
  expect(best.counts.filtered + best.train.length).toBe(8);
  const split = selectRows(folder, { select: "all", kind: "train", valFraction: 0.5 });
  expect(split.train.length + split.validation.length).toBe(32);
  expect(() => selectRows(newFolder(), { select: "all", kind: "train" })).toThrow("no such folder");

  const chain = newFolder();
  const config = {
    model: { lora_rank: 0 },
    rllm: { trainer: { logger: [], save_freq: 1, plot_every: 0 } },
    training: { learning_rate: 0.1 },
    data: { train_batch_size: 4 },
  };
  const stages = () => [
    { name: "sft", experiment: sft({ data: fromRows("good", correct.train), config }) },
    { name: "dpo", experiment: dpo({ data: fromRows("pairs", pairs.train), config }) },
    { name: "rl", experiment },
  ];
  const summaries = await trainStages(chain, stages(), { engine: openToy() });
  const [imitation, preference, rewards] = summaries.map(({ history }) => history.map(({ metrics }) => metrics));
  expect(imitation!.at(-1)!["sft/nll"]).toBeLessThan(imitation![0]!["sft/nll"]!);
  // The reference is the model after the first stage, so the first step has no margin.
  expect(preference![0]!["dpo/margin"]).toBeCloseTo(0, 6);
  expect(preference![0]!["actor/loss"]).toBeCloseTo(Math.log(2), 6);
  expect(rewards).toHaveLength(2);
  const lines = summaries.map(({ folder: run }) => metricLines(run!));
  // A second run of the script repeats nothing.
  const again = await trainStages(chain, stages(), { engine: openToy() });
  expect(again.map(({ folder: run }) => metricLines(run!))).toEqual(lines);
  await expect(trainStages(chain, [...stages(), ...stages()])).rejects.toThrow("two stages are named sft");
});
