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
