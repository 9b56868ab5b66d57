import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeAll, expect, it, vi } from "vitest";
import { openToy, temporaryFolders, toy } from "../toy-experiment.fixture.ts";
import { train } from "../train.ts";
import type { Evaluation } from "./report.ts";

const { newFolder } = temporaryFolders("eval");
afterEach(() => {
  vi.restoreAllMocks();
});

const run = newFolder();
beforeAll(() => train(toy(), { engine: openToy(), overrides: [`rllm.trainer.run_dir=${run}`] }));

async function evaluate(
  candidates: readonly (string | null)[],
  overrides: string[] = [],
  reward = (share: number) => share,
) {
  const output = newFolder();
  let printed = "";
  vi.spyOn(process.stdout, "write").mockImplementation((text) => {
    printed += text;
    return true;
  });
  const experiment = toy({}, (text) => reward([...text].filter((letter) => letter === "a").length / 4));
  const evaluation = { candidates, output };
  const summary = await train(experiment, { engine: openToy(), evaluate: evaluation, overrides }).finally(() =>
    vi.restoreAllMocks(),
  );
  const read = (...path: string[]) => readFileSync(join(output, ...path), "utf8");
  const result = JSON.parse(read("summary.json")) as Evaluation;
  return { summary, output, printed, result, read };
}

it("eval keeps a folder with every task's row, reply and reward", async () => {
  const { summary, output, result, read, printed } = await evaluate([run]);
  const name = result.models[0]!.name;
  expect(name).toMatch(/^run-\d+-step-000006$/);
  expect(summary).toMatchObject({ exitCode: 0, folder: output, step: 0 });
  expect(summary.validation["val/reward"]).toBeCloseTo(result.models[0]!.reward!.mean, 12);
  const lines = read(name, "tasks.jsonl")
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
  expect(lines).toHaveLength(8);
  expect(lines[3]).toMatchObject({ task: "toy-validation/3", rollout: 0, row: { index: 3 }, calls: 1 });
  expect(lines[3].reward).toBe([...lines[3].reply].filter((letter: string) => letter === "a").length / 4);
  expect(lines[3].tokens).toBeGreaterThanOrEqual(lines[3].reply.length);
  expect(existsSync(join(output, name, "episodes", "step-000006-validation.jsonl"))).toBe(true);
  expect(printed).toContain(`${name}      8         8`);
  expect(printed).not.toContain("->");
});

it("eval compares a checkpoint with the base model on the same tasks", async () => {
  const { result, printed } = await evaluate([null, run], ["rllm.rollout.n_val=4"]);
  const [base, trained] = result.models;
  expect(base).toMatchObject({ name: "base", checkpoint: null, rollouts: 32, tasks: 8 });
  expect(Object.keys(base!.passAt)).toEqual(["1", "2", "4"]);
  const [comparison] = result.comparisons;
  expect(comparison).toMatchObject({ model: trained!.name, against: "base", tasks: 8 });
  expect(comparison!.difference.mean).toBeCloseTo(trained!.reward!.mean - base!.reward!.mean, 12);
  expect(comparison!.wins + comparison!.losses + comparison!.ties).toBe(8);
  expect(printed).toMatch(/against base, on 8 tasks: \+0\.\d+ ± 0\.\d+ \(95%/);
});

it("eval measures the same model the same way twice", async () => {
  const [step2, step4] = [2, 4].map((step) => join(run, "checkpoints", `step-00000${step}`));
  const [there, back] = [await evaluate([step2!, step4!]), await evaluate([step4!, step2!])];
  expect(there.result.models.map(({ reward }) => reward)).toEqual(
    back.result.models.map(({ reward }) => reward).reverse(),
  );
  expect(there.result.comparisons[0]!.wins).toBe(back.result.comparisons[0]!.losses);
});

it("eval refuses the same checkpoint twice, a missing one, and a folder in use", async () => {
  await expect(evaluate([run, run])).rejects.toThrow("is named twice");
  await expect(evaluate([join(run, "nowhere")])).rejects.toThrow(/the folder .* does not exist/);
  const used = train(toy(), { engine: openToy(), evaluate: { candidates: [null], output: run } });
  await expect(used).rejects.toThrow("is not empty");
});

it("eval fails if no reward is known, and keeps the reasons", async () => {
  const lenient = ["rllm.workflow.raise_on_error=false", "rllm.workflow.retry_limit=0"];
  await expect(evaluate([null], lenient, () => Number.NaN)).rejects.toThrow("no rollout of base has a known reward");
});

it("eval takes model, adapter and backend of a checkpoint from its run, and new settings take precedence", async () => {
  const own = newFolder();
  const adapted = [`rllm.trainer.run_dir=${own}`, "model.lora_rank=2", "rllm.rollout.n_val=3"];
  await train(toy(), { engine: openToy(), overrides: adapted });
  const adapters: unknown[] = [];
  const { engine, chat } = openToy();
  const createPolicy: typeof engine.createPolicy = (spec) => {
    adapters.push(spec.adapter);
    return engine.createPolicy(spec);
  };
  const measure = async (candidates: (string | null)[], overrides: string[] = []) => {
    vi.spyOn(process.stdout, "write").mockReturnValue(true);
    const evaluation = { candidates, output: newFolder() };
    await train(toy(), { engine: { engine: { ...engine, createPolicy }, chat }, evaluate: evaluation, overrides });
    return JSON.parse(readFileSync(join(evaluation.output, "summary.json"), "utf8")) as Evaluation;
  };
  const { models } = await measure([own, null]);
  expect(adapters).toMatchObject([
    { kind: "lora", rank: 2 },
    { kind: "lora", rank: 2 },
  ]);
  expect(models.map(({ rollouts }) => rollouts)).toEqual([24, 24]);
  expect((await measure([own], ["rllm.rollout.n_val=1"])).models[0]!.rollouts).toBe(8);
});
