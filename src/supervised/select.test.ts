import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, describe, expect, it, test, vi } from "vitest";
import { singleTurn } from "../agents/workflows.ts";
import { runHere } from "../apps/cli/run-here.fixture.ts";
import type { Engine } from "../backends/engine.ts";
import type { ConfigInput } from "../config/schema.ts";
import { fromRows } from "../data/dataset.ts";
import { readSpans } from "../gateway/traces/otlp.ts";
import { openTraceStore } from "../gateway/traces/store.ts";
import type { Trace } from "../gateway/types.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { tabularEngine } from "../testing/index.ts";
import { type Stage, trainStages } from "../trainer/stages.ts";
import { metricLines, openToy, temporaryFolders, toy } from "../trainer/toy-experiment.fixture.ts";
import { train } from "../trainer/train.ts";
import { dpo } from "./dpo.ts";
import { selectPairs, selectRows, taskFilter } from "./select.ts";
import { sft } from "./sft.ts";

describe("chain", () => {
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
});

describe("select episodes", () => {
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
});

describe("select traces", () => {
  afterEach(() => vi.restoreAllMocks());

  const call: Omit<Trace, "id" | "session" | "messages" | "reply" | "tokens"> = {
    ...{ attempt: 0, role: "agent", api: "chat.completions", model: "m", startedMs: 1, latencyMs: 1, status: "ok" },
    ...{ error: null, stopReason: "stop", policyVersion: 0, tools: null, params: {}, metadata: {} },
    ...{ promptTokens: new Int32Array(1), logprobs: new Float32Array(1) },
  };

  const ended = {
    ...{ attempt: 0, startedMs: 1, endedMs: 2, termination: "env_done", correct: null, failure: null, metadata: {} },
  };

  /** Two tasks with four sessions each; the rewards, and the number of sampled tokens. */
  function storeOf(path: string): void {
    const store = openTraceStore({ path });
    for (const [task, rewards] of Object.entries({ easy: [1, 1, 1, null], hard: [0, 0.5, 1, 0.5] })) {
      for (const [index, reward] of rewards.entries()) {
        const session = `${task}-${index}`;
        store.session({ ...ended, session, taskId: task, reward });
        const reply = { role: "assistant", content: task === "easy" && index < 2 ? "same" : `reply ${index}` };
        const messages = [{ role: "user", content: task }];
        store.trace({ ...call, id: session, session, messages, reply, tokens: new Int32Array(4 - index) });
      }
    }
    store.close();
  }

  async function traces(...words: string[]) {
    const { out, errors: told } = await runHere("traces", "export", ...words);
    const rows = out.split("\n").filter((line) => line.startsWith("{"));
    return { rows: rows.map((line) => JSON.parse(line)), told };
  }

  const replies = (rows: { messages: { content: string }[] }[]) =>
    rows.map(({ messages }) => [messages[0]!.content, messages.at(-1)!.content]);

  test("chosen sessions of the trace store become rows and pairs", async () => {
    const folder = temporaryFolder("select-traces");
    const path = join(folder, "traces.db");
    storeOf(path);
    const choose = (...words: string[]) => traces("--store", path, "--as", "sft", ...words);

    const best = await choose("--select", "best");
    expect(replies(best.rows)).toEqual([
      ["easy", "reply 2"],
      ["hard", "reply 2"],
    ]);
    expect(best.told).toContain("8 sessions of 2 tasks; left out: 1 sessions without a reward");
    expect(replies((await choose("--select", "correct", "--max-per-task", "2", "--dedup")).rows)).toEqual([
      ["easy", "same"],
      ["easy", "reply 2"],
      ["hard", "reply 2"],
    ]);
    expect((await choose("--select", "all")).rows).toHaveLength(7);
    expect((await choose()).rows).toHaveLength(8);
    expect(replies((await choose("--filter", "0 < avg < 1", "--select", "shortest")).rows)).toEqual([
      ["hard", "reply 2"],
    ]);
    const { rows: pairs } = await traces("--store", path, "--as", "pairs");
    expect(pairs).toEqual([
      {
        prompt: [{ role: "user", content: "hard" }],
        chosen: [{ role: "assistant", content: "reply 2" }],
        rejected: [{ role: "assistant", content: "reply 0" }],
      },
    ]);

    const output = join(folder, "rows.jsonl");
    await choose("--val-fraction", "0.99", "-o", output);
    expect(existsSync(join(folder, "rows-val.jsonl"))).toBe(true);
    expect((await traces("--store", path, "--select", "best")).told).toContain("use --as sft");
    expect((await choose("--val-fraction", "0.5")).told).toContain("--output");
  });

  test("imported spans are attempts at their first prompt", async () => {
    const path = join(temporaryFolder("select-spans"), "traces.db");
    const file = new URL("../gateway/traces/fixtures/ai-sdk-7.0.173.json", import.meta.url);
    const read = await readSpans(JSON.parse(readFileSync(file, "utf8")), (trace) => trace);
    const store = openTraceStore({ path, project: "spans" });
    const sessions = [...new Set(read.traces.map(({ session }) => session))];
    for (const [attempt, reward] of [0.2, 0.9].entries()) {
      for (const trace of read.traces) {
        store.trace({ ...trace, id: `${trace.id}-${attempt}`, session: `${trace.session}-${attempt}` });
      }
      for (const session of sessions)
        store.session({ ...ended, session: `${session}-${attempt}`, taskId: null, reward });
    }
    store.close();
    const { rows, told } = await traces("--store", path, "--as", "sft", "--select", "best");
    expect(told).toContain(`${2 * sessions.length} sessions of ${sessions.length} tasks`);
    expect(rows.length).toBeGreaterThan(0);
  });
});
