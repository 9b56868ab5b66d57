import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, expect, it } from "vitest";
import { makeTinyModel } from "../../base/python.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { runHone } from "./hone.fixture.ts";

const root = temporaryFolder("multirun");
let model: string;

beforeAll(async () => {
  model = await makeTinyModel(join(root, "model"));
});

const hone = (...args: string[]) => runHone(["train", "src/apps/cli/toy-experiment.fixture.ts", ...args]);

it("trains once for each combination, continues after a failure, and prints the results", () => {
  const sweep = join(root, "sweep");
  const { status, stdout, stderr } = hone(
    "-m",
    `hydra.sweep.dir=${sweep}`,
    `model.name=${model},${join(root, "nothing")}`,
    "training.learning_rate=0.05,0.01",
    "rllm.trainer.total_batches=2",
  );
  const lines = stdout.slice(stdout.lastIndexOf("run  overrides")).trim().split("\n");
  expect(
    lines.slice(1).map((line) =>
      line
        .replace(/ {2,}/g, "|")
        .split("|")
        .map((cell) => cell.trim()),
    ),
  ).toEqual([
    [
      "0",
      `model.name=${model} training.learning_rate=0.05`,
      "2",
      expect.any(String),
      expect.any(String),
      "done",
      join(sweep, "0"),
    ],
    [
      "1",
      `model.name=${model} training.learning_rate=0.01`,
      "2",
      expect.any(String),
      expect.any(String),
      "done",
      join(sweep, "1"),
    ],
    ["2", expect.stringContaining("nothing"), "0", "-", "-", "failed (2)", join(sweep, "2")],
    ["3", expect.stringContaining("nothing"), "0", "-", "-", "failed (2)", join(sweep, "3")],
  ]);
  expect(status, stderr).toBe(2);
  expect(readFileSync(join(sweep, "1", "config.yaml"), "utf8")).toMatch(/learning_rate: 0\.01 # command line/);
  expect(existsSync(join(sweep, "multirun.yaml"))).toBe(true);
});

it("starts nothing if an override of one run is wrong", () => {
  const sweep = join(root, "none");
  const { status, stderr } = hone("-m", `hydra.sweep.dir=${sweep}`, "rllm/backend=local,locl");
  expect(stderr).toContain("there is no configuration rllm/backend/locl; did you mean local?");
  expect(status).toBe(2);
  expect(existsSync(sweep)).toBe(false);
});

it("explains a key of each run, and starts none", () => {
  const { status, stdout } = hone("-m", "training.learning_rate=1e-4,1e-5", "--explain", "training.learning_rate");
  expect(stdout.match(/training\.learning_rate = 0\.0+1/g)).toHaveLength(2);
  expect(status).toBe(0);
});
