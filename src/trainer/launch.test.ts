import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { setLaunch } from "./launch.ts";
import { openToy, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

const { newFolder } = temporaryFolders("launch");

test("the command line overrides the options that a script passes to its first train()", async () => {
  const steps = async (folder: string) => {
    const overrides = ["rllm.trainer.total_batches=3", `rllm.trainer.run_dir=${folder}`];
    const summary = await train(toy(), { engine: openToy(), overrides });
    expect(summary.folder).toBe(folder);
    return summary.step;
  };
  setLaunch({ overrides: ["rllm.trainer.total_batches=2"] });
  expect(await steps(newFolder())).toBe(2);
  expect(await steps(newFolder())).toBe(3);
});

test("hone train exits with the code of the run that its script starts", async () => {
  let replies = 0;
  const interrupted = toy({}, () => {
    // In the second step: 16 replies a step.
    if (++replies === 20) process.emit("SIGINT");
    return replies % 2;
  });
  setLaunch({ overrides: [`rllm.trainer.run_dir=${newFolder()}`, "rllm.trainer.val_before_train=false"] });
  const { step } = await train(interrupted, { engine: openToy() });
  const { exitCode } = process;
  process.exitCode = undefined;
  expect([step, exitCode]).toEqual([2, 130]);
});

test("the end of a run names the script's evaluation, if there is one", async () => {
  const endOf = async (experiment: ReturnType<typeof toy>) => {
    const folder = newFolder();
    const overrides = ["rllm.trainer.total_batches=1", `rllm.trainer.run_dir=${folder}`];
    await train(experiment, { engine: openToy(), overrides, script: "./train.ts" });
    return readFileSync(join(folder, "events.jsonl"), "utf8");
  };
  const { validation: _, ...withoutValidation } = toy();
  expect(await endOf(toy())).toContain("npx hone-rl eval ./train.ts");
  expect(await endOf(withoutValidation)).not.toContain("hone-rl eval");
});
