/** What remains when the engine ends while a run opens. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, it, vi } from "vitest";
import { temporaryFolders, toy } from "../toy-experiment.fixture.ts";
import { train } from "../train.ts";

const { root, newFolder } = temporaryFolders("failed");
afterEach(() => vi.unstubAllEnvs());

/** A worker that ends at once. */
function brokenPython(): string {
  const program = join(root, "python");
  writeFileSync(program, `#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "no libtorch" >&2\nexit 1\n`, { mode: 0o755 });
  return program;
}

it("the run folder stays with the log of the engine, and the name can be used again", async () => {
  vi.stubEnv("HONE_PYTHON", brokenPython());
  const [model, folder] = [join(root, "model"), newFolder()];
  mkdirSync(model);
  writeFileSync(join(model, "config.json"), "{}");
  const run = () => train(toy(), { overrides: [`model.name=${model}`, `rllm.trainer.run_dir=${folder}`] });
  for (let attempt = 0; attempt < 2; attempt++) {
    await expect(run()).rejects.toThrow(/ended with exit code 1/);
    expect(readFileSync(join(folder, "worker.log"), "utf8")).toContain("no libtorch");
  }
});

it("a mistake of the user leaves no folder", async () => {
  vi.stubEnv("HONE_PYTHON", brokenPython());
  const folder = newFolder();
  const overrides = [`model.name=${join(root, "missing")}`, `rllm.trainer.run_dir=${folder}`];
  await expect(train(toy(), { overrides })).rejects.toMatchObject({ exitCode: 2 });
  expect(existsSync(folder)).toBe(false);
});
