/** Every key of the schema takes effect or is refused; no setting is silently ignored. */
import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { configReads, isReadOf } from "./config-reads.fixture.ts";
import { configKeys, type KeyDescription } from "./schema.ts";
import { forwardedKeys, sharedKeys } from "./synonyms.ts";

const source = fileURLToPath(new URL("..", import.meta.url));

/** Keys that the syntax tree does not show as read, with the file that reads them and the text that does so. */
const readOtherwise: Readonly<Record<string, { file: string; word: string }>> = {
  // A test of the losses checks that each reads its constants.
  ...Object.fromEntries(
    [...configKeys.keys()]
      .filter((key) => key.startsWith("rllm.algorithm.policy_loss."))
      .map((key) => [key, { file: "trainer/options.ts", word: "...algorithm.policy_loss" }]),
  ),
  ...Object.fromEntries(
    [...configKeys.keys()]
      .filter((key) => key.startsWith("rllm.compact_filtering."))
      .map((key) => [
        key,
        {
          file: "trajectories/groups.ts",
          word: key.endsWith(".enable") ? "filtering.enable" : "filtering[`mask_",
        },
      ]),
  ),
};

/** Read during composition, not by the code that runs later. */
const readByComposition = ["rllm.on_unsupported", "training.resume_from_tinker_id", "training.default_local_dir"];

test.each([
  ["config.training.eps;", ["training.eps"]],
  ["const { eps, beta1: b } = run.config.training;", ["training.eps", "training.beta1"]],
  ["const t = config.training; t.eps;", ["training.eps"]],
  ["const f = ({ rllm: { trainer } }: Config) => trainer.seed;", ["rllm.trainer.seed"]],
  ['function f(options: Config["rllm"]["trainer"]) { return options.seed; }', ["rllm.trainer.seed"]],
  ["const { config } = run; const { training = x } = config; training!.eps;", ["training.eps"]],
  ['config.rllm.trainer["seed"];', ["rllm.trainer.seed"]],
  ["const f = (trainer) => trainer.seed;", ["trainer.seed"]],
])("%s reads %j", (code, expected) => {
  expect([...configReads(code)]).toEqual(expect.arrayContaining(expected));
});

test.each([
  "const trainer = makeTrainer(); trainer.seed;",
  "function f(trainer: Trainer) { return trainer.seed; }",
  "for (const trainer of trainers) trainer.seed;",
  "const { seed } = other();",
])("%s does not read a key", (code) => {
  expect([...configReads(code)].filter((read) => isReadOf("rllm.trainer.seed", read))).toEqual([]);
});

test("every key is read by some code, or refused by its `later`", () => {
  const reads = new Set(sourceFiles().flatMap((file) => [...configReads(readFileSync(file, "utf8"))]));
  const isRead = (key: string) => [...reads].some((read) => isReadOf(key, read));
  // One of two names is enough, because composition synchronizes them.
  const twins = new Map(
    [...sharedKeys, ...forwardedKeys].flatMap(([left, right]) => [
      [left, right],
      [right, left],
    ]),
  );
  const forgotten = [...configKeys.values()]
    .filter((known) => !isRefused(known) && known.about.neutral === undefined)
    .map(({ key }) => key)
    .filter((key) => !readByComposition.includes(key))
    .filter((key) => ![key, twins.get(key) ?? key].some((name) => isRead(name) || name in readOtherwise));
  expect(forgotten).toEqual([]);
});

test("keys read in other ways are read in the listed files", () => {
  for (const [key, { file, word }] of Object.entries(readOtherwise)) {
    expect(configKeys.has(key), key).toBe(true);
    expect(readFileSync(join(source, file), "utf8"), `${key} in ${file}`).toContain(word);
  }
});

test("the condition of a key names a key and one of its values", () => {
  const conditions = [...configKeys.values()].flatMap(({ when }) => when);
  expect(conditions.length).toBeGreaterThan(40);
  for (const condition of new Set(conditions)) {
    const [key = "", value] = condition.replace(" above 0", "=1").split("=");
    if (value === undefined) {
      expect(configKeys.get(key)?.default, condition).toBeNull();
      continue;
    }
    const parsed = ["true", "false", "null", "1"].includes(value) ? JSON.parse(value) : value;
    expect(configKeys.get(key)?.schema.safeParse(parsed).success, condition).toBe(true);
  }
});

/** Whether all values except the default are refused. */
function isRefused({ about: { later }, options, default: fallback }: KeyDescription): boolean {
  if (typeof later === "string") return true;
  return later !== undefined && options.length > 0 && options.every((one) => one === fallback || one in later);
}

function sourceFiles(folder = source): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) return relative(source, path) === "config" ? [] : sourceFiles(path);
    return /\.ts$/.test(entry.name) && !/\.(test|e2e|fixture)\.ts$/.test(entry.name) ? [path] : [];
  });
}
