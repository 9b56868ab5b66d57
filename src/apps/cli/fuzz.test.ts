/**
 * Runs random command lines, made of real commands, flags and keys, misspellings, odd words, odd files and damaged run
 * folders. Each must exit with 0, 1 or 2, report its failure, and never blame Hone.
 */
import { cpSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { UserError } from "../../base/errors.ts";
import { deriveSeed, uniforms } from "../../base/values.ts";
import { flagDescriptions } from "../../config/lightrft/compose.ts";
import { configKeys } from "../../config/schema.ts";
import { fuzzCases, fuzzTimeout } from "../../fuzz-time.fixture.ts";
import { removeFolder } from "../../temporary-folder.fixture.ts";
import { openToy, toy } from "../../trainer/toy-experiment.fixture.ts";
import { train } from "../../trainer/train.ts";
import { commandNames, program, runCommandLine } from "./main.ts";

// Scripts are loaded in import-module.test.ts; here each is the same small experiment.
vi.mock("../../base/import-module.ts", async (original) => ({
  ...(await original<object>()),
  importModule: async () => ({ default: toy() }),
}));
// A viewer would serve until a signal.
vi.mock("./report-error.ts", async (original) => ({ ...(await original<object>()), untilSignal: async () => {} }));
// Nothing here needs a worker, and starting one takes half a minute.
vi.mock("../../base/python.ts", async (original) => {
  const noPython = () => Promise.reject(new UserError("Python is not prepared in this test"));
  return {
    ...(await original<object>()),
    ...{ preparePython: noPython, preparePackage: noPython, setupCommand: () => "" },
  };
});

const root = mkdtempSync(join(tmpdir(), "hone-cli-fuzz-"));
const folder = join(root, "inside", "work");
const back = process.cwd();
const model = "model.name=./no-such-model";

beforeAll(async () => {
  mkdirSync(folder, { recursive: true });
  process.chdir(folder);
  vi.stubEnv("HOME", folder);
  vi.stubEnv("HONE_API_KEY", undefined);
  await train(toy(), { engine: openToy(), overrides: ["rllm.trainer.run_dir=runs/good", model] });
  writeFiles();
});
afterAll(() => {
  process.chdir(back);
  removeFolder(root);
});

const damages: Readonly<Record<string, string>> = {
  "checkpoints/step-000006/checkpoint.json": "null",
  "config.yaml": "rllm: [",
  "metrics.jsonl": "null\n5\n[]\n{",
  "episodes/step-000006.jsonl": 'null\n{"trajectories":[null]}\n',
  "tokenizer/tokenizer.json": "[]",
};

function writeFiles(): void {
  const files = {
    "train.ts": "",
    "text.txt": "words",
    "empty.yaml": "",
    "null.yaml": "null",
    "list.yaml": "- 1\n- 2",
    "good.yaml": "training:\n  learning_rate: 1e-4",
    "proto.yaml": "__proto__:\n  constructor: 1\ntoString: 2",
    "deep.yaml": `a: ${"[".repeat(5000)}`,
    "binary.yaml": Buffer.from([0xff, 0xfe, 0, 1]),
    "traces.db": "this is not a database",
  };
  for (const [name, text] of Object.entries(files)) writeFileSync(name, text);
  mkdirSync("folder.ts");
  mkdirSync("model-folder");
  writeFileSync("model-folder/config.json", '{"model_type": null, "hidden_size": -1}');
  for (const [index, [name, text]] of Object.entries(damages).entries()) {
    const run = `runs/damaged-${index}`;
    cpSync("runs/good", run, { recursive: true });
    mkdirSync(join(run, name, ".."), { recursive: true });
    writeFileSync(join(run, name), text);
  }
  // A checkpoint without a hash, whose saved state is JSON of another kind.
  for (const [index, state] of [null, { config: 5 }, { config: { rllm: [] }, progress: null }].entries()) {
    const run = `runs/state-${index}`;
    cpSync("runs/good", run, { recursive: true });
    const file = join(run, "checkpoints/step-000006/checkpoint.json");
    const { sha256: _, ...content } = JSON.parse(readFileSync(file, "utf8"));
    writeFileSync(file, JSON.stringify({ ...content, state }));
  }
}

const oddWords = [
  ...["", " ", "-", "--", "=", "==", "=x", "~", "~x", "+", "++", ".", "..", "/", "\0", "a\0b", "\n", "\x1b[31m", "🙂"],
  ...["toString", "constructor", "__proto__", "hasOwnProperty", "valueOf", "null", "undefined", "NaN", "-1", "1e309"],
  ...["x".repeat(300), "x".repeat(5000), "%s%n", "$(x)", "`", "'", '"', "${", "http://", "abc", "*", "[", "{"],
];
const oddValues = [
  ...oddWords,
  ...["0", "1", "2", "0.5", "1e9", "1e-320", "9007199254740993", "0x10", "1_000", "true", "off", "[]", "{}", "[1,[2]"],
  ...[
    "[console,tensorboard]",
    "[nope]",
    "{a:1}",
    "{__proto__:1}",
    ...["rllm.rollout.n", "oc.env:HOME", "now:", "x"].map((name) => `\${${name}}`),
  ],
  ...["runs/good", "text.txt", "text.txt/below", "folder.ts", "model-folder", "grpo", "multi_turn_workflow", "auto"],
];
const runs = [
  "good",
  "missing",
  ...[0, 1, 2, 3, 4].map((index) => `damaged-${index}`),
  "state-0",
  "state-1",
  "state-2",
];
const oddPaths = [
  ...runs.flatMap((name) => [`runs/${name}`, `runs/${name}/checkpoints/step-000006`]),
  ...["train.ts", "folder.ts", "text.txt", "model-folder", "text.txt/below", "x".repeat(300), "traces.db", ".", ".."],
  ...["empty.yaml", "null.yaml", "list.yaml", "good.yaml", "proto.yaml", "deep.yaml", "binary.yaml", "missing.yaml"],
];
const keys = [...configKeys.keys()];
const flags = [...flagDescriptions.keys()];

/** Words that would start another process, wait for the network, or remove images of this machine. */
const excluded = /^(clean|-m|--multirun|.*MULTIRUN.*|.*tinker.*|.*wandb.*|.*mlflow.*|.*trackio.*)$/s;

const all = await program(commandNames);

function randomLine(random: () => number): string[] {
  const pick = <Item>(items: readonly Item[]): Item => items[Math.floor(random() * items.length)] as Item;
  const mistype = (word: string) => {
    const at = Math.floor(random() * (word.length + 1));
    return random() < 0.5
      ? word.slice(0, at) + word.slice(at + 1)
      : word.slice(0, at) + pick(oddWords) + word.slice(at);
  };
  const override = () =>
    pick(["", "+", "++", "~", ""]) +
    pick([pick(keys), pick(keys), pick(oddWords)]) +
    pick(["=", "=", "", ":="]) +
    pick(oddValues);
  const word = () => pick([() => pick(oddWords), () => pick(oddPaths), override, override])();

  let command = all;
  const line: string[] = [];
  while (command.commands.length > 0 && (line.length === 0 || random() < 0.6)) {
    command = pick(command.commands);
    line.push(command.name());
  }
  for (const { required } of command.registeredArguments) {
    if (required ? random() < 0.95 : random() < 0.7) line.push(random() < 0.6 ? pick(oddPaths) : word());
  }
  if (line[0] === "train" || line[0] === "eval")
    line.splice(1, 1, pick(["train.ts", "train.ts", line[1] ?? "train.ts"]));
  const takesMore = command.registeredArguments.at(-1)?.variadic || random() < 0.2;
  for (let count = takesMore ? Math.floor(random() * 4) : 0; count > 0; count--) line.push(word());
  for (let count = Math.floor(random() * 3); count > 0 && command.options.length > 0; count--) {
    const option = pick(command.options);
    line.push(option.long ?? "--help");
    if (option.required || (option.optional && random() < 0.5)) {
      const usual = option.argChoices ?? ["1", "yaml", "json", "job", "sft", "merged"];
      line.push(random() < 0.5 ? pick(usual) : random() < 0.5 ? pick(oddPaths) : word());
    }
  }
  if (line.includes("lightrft")) {
    for (let count = Math.floor(random() * 5); count > 0; count--) line.push(`--${pick(flags)}`, pick(oddValues));
  }
  if (random() < 0.1) line[Math.floor(random() * line.length)] = mistype(pick(line));
  const kept = line.filter((one) => !excluded.test(one));
  return [...kept, ...ending(kept[0])];
}

/** Keeps a command from loading a model, and from serving one until a signal. */
const ending = (command: string | undefined): string[] =>
  ["train", "eval", "chat", "gateway", "doctor", "lightrft"].includes(command ?? "") ? [model] : [];

const hung = -1;

test(
  "any command line exits with 0, 1 or 2 and a message, without a stack of Hone's code",
  async () => {
    let said = "";
    const write = (text: unknown) => {
      said += String(text);
      return true;
    };
    using _out = vi.spyOn(process.stdout, "write").mockImplementation(write);
    using errors = vi.spyOn(process.stderr, "write").mockImplementation(write);
    const codes = [0, 0, 0];
    const failures: string[] = [];
    for (const index of fuzzCases(400)) {
      const line = randomLine(uniforms(deriveSeed(20, "cli-fuzz", index)));
      said = "";
      errors.mockClear();
      process.exitCode = undefined;
      // A run whose rollouts all fail waits for over a minute before it gives up.
      const code = await Promise.race([runCommandLine(line), sleep(110_000, hung, { ref: false })]);
      process.exitCode = undefined;
      codes[code] = (codes[code] ?? 0) + 1;
      const isWrong =
        ![0, 1, 2].includes(code) ||
        (code !== 0 && errors.mock.calls.length === 0) ||
        /bug in Hone|^\s+at .*(src|dist)\/|Unhandled|\[object Object\]/m.test(said);
      if (!isWrong) continue;
      const words = line.map((word) => JSON.stringify(word.slice(0, 80))).join(" ");
      failures.push(`case ${index} ended with ${code}: hone ${words}\n${said.slice(-1500)}`);
      if (failures.length === 10 || code === hung) break;
    }
    const cases = codes.reduce((sum, count) => sum + count, 0);
    console.log(`cli fuzz: ${cases} command lines; ${codes.map((count, code) => `exit ${code}: ${count}`).join(", ")}`);
    expect(failures.join("\n\n")).toBe("");
    expect([codes[0], codes[2]]).not.toContain(0);
  },
  fuzzTimeout,
);
