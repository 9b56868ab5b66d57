import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { metricLines, openToy, temporaryFolders, toy } from "../toy-experiment.fixture.ts";
import { train } from "../train.ts";

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
