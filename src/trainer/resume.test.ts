import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it, test } from "vitest";
import { readYamlFile } from "../config/yaml.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { findCheckpoint, savedConfigFile } from "./resume.ts";
import { metricLines, openToy, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { beforeAfter, train } from "./train.ts";

const root = temporaryFolder("odd-files");

test("FIFOs and devices in a run folder neither block resuming, chatting and exporting, nor the report at the end", async () => {
  const checkpoint = join(root, "checkpoints", "step-000001");
  mkdirSync(checkpoint, { recursive: true });
  mkdirSync(join(root, "episodes"));
  for (const file of ["checkpoints/step-000001/checkpoint.json", "episodes/step-000000-validation.jsonl"]) {
    execFileSync("mkfifo", [join(root, file)]);
  }
  await expect(findCheckpoint(checkpoint)).rejects.toThrow("checkpoint.json is a FIFO");
  await expect(findCheckpoint(root)).rejects.toThrow("checkpoint.json is a FIFO");
  expect(beforeAfter(root, 1)).toEqual([]);
  symlinkSync("/dev/zero", join(root, "config.yaml"));
  expect(() => savedConfigFile(root)).toThrow("config.yaml is a link, which is not followed");
  expect(readYamlFile(join(root, "config.yaml")).mistakes).toMatchObject([
    { message: expect.stringContaining("more than 1000000 bytes") },
  ]);
});

const { newFolder } = temporaryFolders("damaged");

function damage(run: string, step: string): void {
  const file = join(run, "checkpoints", step, "policy", "state.json");
  writeFileSync(
    file,
    readFileSync(file, "utf8").replace(/\d/, (digit) => String((Number(digit) + 1) % 10)),
  );
}

it("a run continues from an older checkpoint with a warning, and never silently starts at step 0", async () => {
  const folder = newFolder();
  const go = (...more: string[]) =>
    train(toy(), { engine: openToy(), overrides: [`rllm.trainer.run_dir=${folder}`, ...more] });
  await go();
  const whole = metricLines(folder);
  damage(folder, "step-000006");
  expect((await go()).step).toBe(6);
  expect(metricLines(folder)).toEqual(whole);
  const log = readFileSync(join(folder, "log.txt"), "utf8");
  expect(log).toMatch(/warning: .*step-000006 is damaged: .*; step-000004 is used instead/);

  for (const step of readdirSync(join(folder, "checkpoints"))) damage(folder, step);
  await expect(go()).rejects.toThrow(/all checkpoints in .* are damaged:(\n {2}.*is damaged.*){3}/);
  expect(metricLines(folder)).toEqual(whole);
  expect((await go("training.resume_mode=off")).step).toBe(6);
});
