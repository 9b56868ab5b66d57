import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import {
  type Attempt,
  compareAttempts,
  type Evaluation,
  passAtK,
  signTest,
  studentQuantile,
  summarizeAttempts,
} from "./evaluate.ts";
import { openToy, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

describe("evaluate", () => {
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
});

describe("attempts", () => {
  const attempt = (task: string, reward: number | null): Attempt => ({
    task,
    reward,
    solved: reward === 1,
    tokens: 10,
  });
  const attempts = (rewards: Record<string, readonly (number | null)[]>) =>
    Object.entries(rewards).flatMap(([task, all]) => all.map((reward) => attempt(task, reward)));

  describe("the summary of an evaluation", () => {
    it("has the standard error of a mean where each task is tried once", () => {
      const { reward, ...rest } = summarizeAttempts(attempts({ a: [1], b: [0], c: [1], d: [1] }));
      expect(reward!.mean).toBe(0.75);
      expect(reward!.standardError).toBeCloseTo(0.25, 12); // sd 0.5 of n - 1, over the root of 4
      const reach = 3.182446 * 0.25; // Student's t with 3 degrees of freedom
      expect(reward!.interval).toEqual([expect.closeTo(0.75 - reach, 2), expect.closeTo(0.75 + reach, 2)]);
      expect(rest).toEqual({ tasks: 4, rollouts: 4, unknown: 0, passAt: { 1: 0.75 }, meanTokens: 10 });
    });

    it("does not become more certain by repeating the same tasks", () => {
      const once = summarizeAttempts(attempts({ a: [1], b: [0], c: [1], d: [1] })).reward!;
      const often = summarizeAttempts(attempts({ a: [1, 1, 1], b: [0, 0, 0], c: [1, 1, 1], d: [1, 1, 1] })).reward!;
      expect(often.mean).toBe(once.mean);
      expect(often.standardError).toBeCloseTo(once.standardError!, 12);
    });

    it("leaves unknown outcomes out, and counts them", () => {
      expect(summarizeAttempts(attempts({ a: [1, null], b: [null, 0] }))).toMatchObject({
        ...{ tasks: 2, rollouts: 4, unknown: 2, reward: { mean: 0.5 }, passAt: { 1: 0.5 } },
      });
      expect(summarizeAttempts(attempts({ a: [null] }))).toMatchObject({ unknown: 1, reward: null, passAt: {} });
      expect(summarizeAttempts(attempts({ a: [1] })).reward).toEqual({ mean: 1, standardError: null, interval: null });
    });

    it("estimates pass@k from all rollouts", () => {
      const { passAt } = summarizeAttempts(attempts({ a: [1, 0, 0, 0], b: [0, 0, 0, 0] }));
      expect(passAt).toEqual({ 1: 0.125, 2: 0.25, 4: 0.5 });
      expect([passAtK(4, 1, 2), passAtK(10, 3, 1), passAtK(5, 0, 5), passAtK(5, 1, 5)]).toEqual([
        0.5,
        expect.closeTo(0.3, 12),
        0,
        1,
      ]);
    });

    it("compares two models task by task", () => {
      const first = attempts({ a: [0], b: [0], c: [1], d: [null], e: [0.5] });
      const second = attempts({ a: [1], b: [1], c: [0], d: [1], e: [0.5] });
      const { difference, ...rest } = compareAttempts(first, second)!;
      expect(rest).toEqual({ tasks: 4, wins: 2, losses: 1, ties: 1, signTest: 1 });
      expect(difference.mean).toBe(0.25);
      expect(difference.standardError).toBeCloseTo(Math.sqrt(2.75 / 3 / 4), 12);
      expect(compareAttempts(first, attempts({ z: [1] }))).toBeNull();
    });

    it.each([
      [9, 1, 0.021484375],
      [5, 5, 1],
      [0, 0, 1],
      [0, 6, 0.03125],
      [2000, 1800, 0.00124],
    ])("%i wins and %i losses have the exact p-value %f", (wins, losses, p) => {
      expect(signTest(wins, losses)).toBeCloseTo(p, 4);
    });

    it.each([
      [1, 12.7062],
      [2, 4.302653],
      [3, 3.182446],
      [5, 2.570582],
      [10, 2.228139],
      [30, 2.042272],
      [1000, 1.962339],
    ])("widens the interval of few tasks: t of %i degrees of freedom is %f", (degrees, quantile) => {
      expect(Math.abs(studentQuantile(degrees) / quantile - 1)).toBeLessThan(2e-3);
    });

    it("swaps signs with the models", () => {
      const rewards = fc.array(fc.integer({ min: 0, max: 4 }), { minLength: 2, maxLength: 12 });
      fc.assert(
        fc.property(rewards, rewards, (left, right) => {
          const of = (all: number[]) => all.map((reward, task) => attempt(String(task), reward));
          const [there, back] = [compareAttempts(of(left), of(right))!, compareAttempts(of(right), of(left))!];
          expect(there.difference.mean).toBeCloseTo(-back.difference.mean, 12);
          expect([there.wins, there.losses, there.signTest]).toEqual([back.losses, back.wins, back.signTest]);
        }),
        { seed: 1 },
      );
    });
  });
});
