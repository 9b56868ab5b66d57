import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { fromRows } from "../data/dataset.ts";
import { checkExperiment, setLaunch } from "./experiment.ts";
import { openToy, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

describe("check experiment", () => {
  const train = fromRows("rows", [{ left: 1 }]);

  test.each<[object, string, string | undefined]>([
    [{ train: [{ left: 1 }] }, "the experiment's train must be a dataset, not a list", "fromRows(...) makes one"],
    [{ train: 3 }, "the experiment's train must be a dataset, not 3", "generated, fromRows or openDataset"],
    [{ train: Promise.resolve(train) }, "not a promise: write await before it", "openDataset"],
    [{ validation: train }, "the experiment has no train dataset", "fromRows"],
    [{ train, validation: {} }, "the experiment's validation must be a dataset, not an object", "fromRows"],
    [
      { train, workflow: { run: () => 1 } },
      "the experiment's workflow must be a function, not an object",
      "singleTurn",
    ],
    [{ train, rewards: () => 1 }, 'the experiment has an unknown property "rewards"', "did you mean reward?"],
    [{ train, tools: {} }, "the experiment's tools must be a list, not an object", undefined],
    [{ train, config: "gpu.yaml" }, "the experiment's config must be an object, not gpu.yaml", undefined],
  ])("%# is refused", (experiment, message, hint) => {
    const error = (() => {
      try {
        checkExperiment(experiment);
      } catch (thrown) {
        return thrown as Error & { hint?: string };
      }
    })();
    expect(error?.message).toContain(message);
    if (hint === undefined) expect(error?.hint).toBeUndefined();
    else expect(error?.hint).toContain(hint);
  });

  test("a complete experiment passes, also with undefined parts", () => {
    checkExperiment({ train, validation: undefined, workflow: () => 1, config: {}, next: "hone view" });
  });
});

describe("launch", () => {
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
});
