import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { importModule } from "../../base/import-module.ts";
import { generated } from "../../data/dataset.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { train } from "../../trainer/train.ts";
import { runHere } from "./run-here.fixture.ts";

vi.mock(import("../../base/import-module.ts"));

const folder = temporaryFolder("scripts");
for (const name of ["train.ts", "train.py", "notes.txt"]) writeFileSync(join(folder, name), "");
mkdirSync(join(folder, "inside"));

test.each([
  ["train.py", /experiments are written in TypeScript/, /commandAgent\({ command: \["python", ".*train.py"\] }\)/],
  ["trian.ts", /trian.ts: no such file/, /did you mean .*train.ts\?/],
  ["a.b=1", /no such file/, /name the script first/],
  [".", /is not a file/, /name a file in it: .*train.ts/],
  ["inside", /is not a file/, /name a file such as/],
  ["notes.txt", /not an ES module in TypeScript or JavaScript/, /ends in .ts, .mts, .js or .mjs/],
])("hone train %s is refused with a hint", async (name, message, hint) => {
  const { code, errors } = await runHere("train", join(folder, name));
  expect(code).toBe(2);
  expect(errors).toMatch(message);
  expect(errors).toMatch(hint);
});

test("hone serve names the option that a model needs", async () => {
  const { code, errors } = await runHere("serve", "./my-model", "--port", "0");
  expect(code).toBe(2);
  expect(errors).toMatch(/takes options only, not "\.\/my-model"[\s\S]*--model \.\/my-model\n/);
});

const experiment = { train: generated("rows", 64, () => ({})), workflow: async () => 1 };

test.each([
  ["exports it by default", false, { default: experiment }],
  ["passes it to train()", true, {}],
  ["does both", true, { default: experiment }],
])("hone train runs an experiment once if its script %s", async (_, calls, exported) => {
  vi.mocked(importModule).mockImplementation(async () => {
    if (calls) await train(experiment);
    return exported;
  });
  const { code, out } = await runHere("train", join(folder, "train.ts"), "--dry-run");
  expect(code).toBe(0);
  expect(out.match(/^# .* steps/gm)).toHaveLength(1);
});

test.each([
  ["config", "--explain", "training.best_metric"],
  ["train", "--explain", "training.best_metric"],
])("hone %s SCRIPT explains a key with the settings of the script, and runs nothing", async (command, ...words) => {
  vi.mocked(importModule).mockImplementation(async () => ({
    default: { ...experiment, config: { training: { best_metric: "val/rows/pass@1" } } },
  }));
  const { code, out } = await runHere(command, join(folder, "train.ts"), ...words);
  expect(code).toBe(0);
  expect(out).toContain('training.best_metric = "val/rows/pass@1"');
  expect(out).toContain("origin: the script's config");
  expect(out).toContain("none on local: it requires a validation dataset in the script");
});

test.each(["chat", "gateway", "doctor"])("hone %s says how a folder is named", async (command) => {
  const { code, errors } = await runHere(command, folder);
  expect(code).toBe(2);
  expect(errors).toContain(`model.name=${folder}, a run's weights by an option such as --check`);
});
