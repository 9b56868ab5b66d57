/** Learning from rows through the trainer's loop, on a model without Python. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { ConfigInput } from "../config/schema.ts";
import { fromRows } from "../data/dataset.ts";
import { openDataset } from "../data/open-dataset.ts";
import { nightly } from "../nightly.fixture.ts";
import { tabularEngine } from "../testing/index.ts";
import { countOperations, metricLines, openToy, temporaryFolders, toy } from "../trainer/toy-experiment.fixture.ts";
import { train } from "../trainer/train.ts";
import { dpo } from "./dpo.ts";
import { sft } from "./sft.ts";

const { newFolder, root } = temporaryFolders("sft");

const reply = (content: string) => ({
  messages: [
    { role: "user", content: "a" },
    { role: "assistant", content },
  ],
});
const mixed = Array.from({ length: 10 }, (_, index) => reply(index % 3 === 0 ? "ccc" : "cb"));
const data = fromRows("rows", mixed);
const validation = fromRows("held", [reply("cb"), reply("ccc")]);
const config: ConfigInput = {
  model: { lora_rank: 0 },
  rllm: { trainer: { total_epochs: 3, logger: [], save_freq: 2, test_freq: 4, plot_every: 0 } },
  training: { learning_rate: 0.3, lr_schedule: "constant" },
  data: { train_batch_size: 4 },
};
const inFolder = (folder: string, ...more: string[]) => [`rllm.trainer.run_dir=${folder}`, ...more];
const run = (...overrides: string[]) =>
  train(sft({ data, config }), { engine: openToy(), overrides: inFolder(newFolder(), ...overrides) });

describe("sft", () => {
  it("lowers the loss of rows and of validation rows, and uses every row of an epoch", async () => {
    const folder = newFolder();
    const { history } = await train(sft({ data, validation, config }), {
      engine: openToy(),
      overrides: inFolder(folder, "training.keep_best=true"),
    });
    // 10 rows in batches of 4: 4, 4 and 2.
    expect(history.map(({ metrics }) => metrics["batch/num_tasks"])).toEqual([4, 4, 2, 4, 4, 2, 4, 4, 2]);
    const [first, last] = [history[0]!.metrics, history.at(-1)!.metrics];
    // A uniform model of the end of turn, four headers and three letters.
    expect(first["sft/nll"]).toBeCloseTo(Math.log(8), 6);
    expect(first["actor/loss"]).toBeCloseTo(Math.log(8), 6);
    expect(last["sft/nll"]).toBeLessThan(1);
    expect(first["reward/mean"]).toBeUndefined();
    const validated = metricLines(folder).filter(({ kind }) => kind === "validation");
    expect(validated.map(({ step }) => step)).toEqual([0, 4, 8, 9]);
    expect(validated[0]!["val/loss"]).toBeCloseTo(Math.log(8), 6);
    expect(validated[0]!["val/tokens"]).toBe(7);
    // Five letters; the ends of turn do not count.
    expect(validated[0]!["val/bits_per_byte"]).toBeCloseTo(3, 6);
    expect(validated.at(-1)!["val/loss"]).toBeLessThan(1);
  });

  it("has no bits per byte of rows without text", async () => {
    const { eosId } = openToy().chat;
    const row = { input_ids: [eosId, eosId], labels: [-100, eosId] };
    const { history } = await train(sft({ data: fromRows("rows", [row]), config }), {
      engine: openToy(),
      overrides: inFolder(newFolder(), "data.train_batch_size=1"),
    });
    expect(history[0]!.metrics["sft/nll"]).toBeCloseTo(Math.log(8), 6);
    expect(history[0]!.metrics).not.toHaveProperty("sft/bits_per_byte");
  });

  it("gives the same run regardless of the operation at which it is killed", { timeout: 60_000 }, async () => {
    const experiment = () => sft({ data, validation, config });
    const whole = newFolder();
    await train(experiment(), { engine: openToy(), overrides: inFolder(whole) });
    const operations = countOperations();
    await train(experiment(), { engine: operations.toy, overrides: inFolder(newFolder()) });
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: operations.count() }), async (instant) => {
        const overrides = inFolder(newFolder());
        await train(experiment(), { engine: countOperations(instant).toy, overrides }).catch((error) => {
          expect(error).toMatchObject({ message: "killed" });
        });
        await train(experiment(), { engine: openToy(), overrides });
        const folder = overrides[0]!.slice("rllm.trainer.run_dir=".length);
        expect(metricLines(folder)).toEqual(metricLines(whole));
      }),
      { numRuns: nightly ? 30 : 5, seed: 1 },
    );
  });

  it("attempts the validation tasks of an experiment, with its settings", async () => {
    const experiment = toy({ rllm: { rollout: { n_val: 2 } } });
    const overrides = inFolder(newFolder());
    const { validation: measured, history } = await train(sft({ data, experiment, config }), {
      engine: openToy(),
      overrides,
    });
    expect(Object.keys(measured)).toEqual(expect.arrayContaining(["val/reward", "val/toy-validation/pass@2"]));
    expect(history).toHaveLength(9);
  });

  it("takes the named reductions and the loss dft", async () => {
    const first = async (...overrides: string[]) => (await run(...overrides)).history[0]!.metrics["actor/loss"]!;
    const [mean, sum] = [await first("sft.reduction=token-mean"), await first("sft.reduction=token-sum")];
    const tokens = (await run()).history[0]!.metrics["sft/tokens"]!;
    expect(sum).toBeCloseTo(mean * tokens, 4);
    expect(await first("sft.reduction=example-mean-sum")).toBeCloseTo(4 * mean, 4);
    expect(await first("sft.reduction=example-mean")).toBeCloseTo(mean, 5);
    expect(await first("sft.loss_type=dft")).toBeCloseTo(mean / 8, 5);
  });

  it.each([
    [["data.max_length=7", "data.truncation=right"], { "data/cut_rows": 4, "data/dropped_rows": 0 }],
    [["data.max_length=5", "data.truncation=left"], { "data/cut_rows": 10, "data/dropped_rows": 0 }],
    [["data.max_length=7", "data.truncation=drop"], { "data/cut_rows": 0, "data/dropped_rows": 4 }],
  ])("counts what %j changes", async (overrides, expected) => {
    const { history } = await run(...overrides, "rllm.trainer.total_epochs=1");
    const total = (name: string) => history.reduce((sum, { metrics }) => sum + metrics[name]!, 0);
    for (const [name, count] of Object.entries(expected)) expect([name, total(name)]).toEqual([name, count]);
  });

  it("refuses a long row and names its line, before the first step", async () => {
    const file = join(root, "long.jsonl");
    writeFileSync(file, [reply("cb"), reply("ccccccccccc")].map((row) => `${JSON.stringify(row)}\n`).join(""));
    const folder = newFolder();
    const long = sft({
      data: await openDataset(file),
      config: { ...config, data: { train_batch_size: 2, max_length: 10 } },
    });
    await expect(train(long, { engine: openToy(), overrides: inFolder(folder) })).rejects.toThrow(
      `${file}:2: it has 16 tokens, but the limit is 10`,
    );
  });

  it("names several invalid rows in one message, before the first step", async () => {
    const file = join(root, "invalid.jsonl");
    const image = [{ type: "image", image: "missing.png" }];
    const invalid = [
      { messages: [{ role: "user", content: "a" }] },
      { messages: [{ role: "user", content: image }, ...reply("b").messages] },
      ...Array.from({ length: 5 }, () => ({ question: "a" })),
    ];
    writeFileSync(file, [reply("cb"), ...invalid].map((row) => `${JSON.stringify(row)}\n`).join(""));
    const refused = train(sft({ data: await openDataset(file), config }), {
      engine: openToy(),
      overrides: inFolder(newFolder()),
    });
    const error: Error = await refused.then(
      () => new Error("it was not refused"),
      (thrown) => thrown,
    );
    expect(error.message.replaceAll(file, "FILE").split("\n  ")).toEqual([
      "7 of 8 rows cannot be learned:",
      "FILE:2: none of its messages is learned with sft.train_on=all_assistant_messages",
      expect.stringMatching(/^FILE:3: message 1 \(user\) has an image, but /),
      ...[4, 5, 6].map((line) => expect.stringMatching(`^FILE:${line}: a row needs messages, .*; it has question$`)),
      "and 2 more",
    ]);
  });

  it("reports rows that call tools without having any, and equal pairs, once each", async () => {
    const call = { role: "assistant", content: "", tool_calls: [{ function: { name: "f", arguments: {} } }] };
    const calling = { messages: [{ role: "user", content: "a" }, call] };
    const nullCall = { ...call, tool_calls: [{ function: { name: "f", arguments: { a: null } } }] };
    const nullArgument = { messages: [{ role: "user", content: "a" }, nullCall], tools: [{ name: "f" }] };
    const folder = newFolder();
    const rows = fromRows("calls", [reply("cb"), calling, calling, nullArgument]);
    const alphabet = [
      ...new Set(
        'abc<tool_call>{"name":"f","arguments":{}}</tool_call>[object Object]system: description,parameters,type,properties,null\\n',
      ),
    ].join("");
    const engine = tabularEngine({ alphabet });
    const overrides = inFolder(folder);
    await train(sft({ data: rows, config }), { engine: { engine, chat: engine.chat }, overrides });
    const pair = (rejected: string) => ({ prompt: "a", chosen: "b", rejected });
    const other = newFolder();
    const pairs = fromRows("pairs", [pair("c"), pair("b")]);
    await train(dpo({ data: pairs, config }), { engine: openToy(), overrides: inFolder(other) });
    const log = (where: string) => readFileSync(join(where, "log.txt"), "utf8");
    expect(log(folder)).toContain("2 of 4 rows call tools, but have no tools; the first is calls[1]");
    expect(log(folder)).toContain("1 of 4 rows have null arguments in calls of tools, which are learned;");
    expect(log(other)).toContain("1 of 2 rows have equal replies, which teach nothing; the first is pairs[1]");
  });

  it("refuses the rows of a run of rollouts, and settings of rollouts have no effect", async () => {
    const overrides = inFolder(newFolder(), "training.source=rows");
    await expect(train(toy(), { engine: openToy(), overrides })).rejects.toThrow(
      "this experiment learns from rollouts",
    );
    const asynchronous = run("rllm.async_training.enable=true");
    await expect(asynchronous).rejects.toThrow("training.source=rollouts");
  });
});
