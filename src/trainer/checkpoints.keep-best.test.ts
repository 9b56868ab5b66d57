import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { findCheckpoint } from "./resume.ts";
import { metricLines, openToy, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

const { newFolder } = temporaryFolders("best");

/** Unlearns what it learned: the best validation is in the middle. */
function rising(until: number) {
  let validations = 0;
  return toy(
    { training: { keep_best: true, max_ckpt_num: 1 } },
    (text) => text.length / 100,
    (_task, { purpose, rollout }) =>
      purpose === "train" ? rollout / 4 : 1 / (1 + Math.abs(until - Math.floor(validations++ / 8))),
  );
}

it("keep_best keeps the checkpoint of the best validation, and export, chat and eval find it by name", async () => {
  const folder = newFolder();
  const trainer = [`rllm.trainer.run_dir=${folder}`, "rllm.trainer.save_freq=0", "rllm.trainer.test_freq=1"];
  const { exitCode } = await train(rising(3), { engine: openToy(), overrides: trainer });
  expect(exitCode).toBe(0);
  const validated = metricLines(folder).flatMap((line) => (line.kind ? [line["val/reward"]] : []));
  expect(validated).toEqual([1 / 4, 1 / 3, 1 / 2, 1, 1 / 2, 1 / 3, 1 / 4]);
  expect(readdirSync(join(folder, "checkpoints")).sort()).toEqual(["step-000003", "step-000006"]);
  const best = await findCheckpoint(join(folder, "best"));
  expect(best).toMatchObject({ step: 3, score: 1 });
  expect((await findCheckpoint(folder)).step).toBe(6);
  const log = readFileSync(join(folder, "log.txt"), "utf8");
  expect(log).toMatch(/checkpoint .*step-000003 .*best val\/reward 1\.000/);
  expect(log).toMatch(/The best val\/reward is 1\.000, of step 3: .*best/);
  expect(existsSync(join(folder, "best"))).toBe(false);
});

it.each([
  ["val/rewrad", "val/reward"],
  ["toy-validation/pass@1", "val/toy-validation/pass@1"],
])("best_metric=%s is refused before anything opens, with the right name", async (name, right) => {
  const overrides = [`training.best_metric=${name}`, `rllm.trainer.run_dir=${newFolder()}`];
  const refused = train(toy(), { engine: openToy(), overrides });
  await expect(refused).rejects.toMatchObject({
    name: "UserError",
    message: expect.stringContaining(`not a metric of the validation dataset toy-validation; did you mean ${right}?`),
  });
  await train(toy(), { engine: openToy(), overrides: [`training.best_metric=${right}`, overrides[1]!] });
});

it("reports a missing best checkpoint", async () => {
  const folder = newFolder();
  const overrides = [
    `rllm.trainer.run_dir=${folder}`,
    "rllm.trainer.total_batches=2",
    "rllm.trainer.test_freq=0",
    "rllm.trainer.save_freq=1",
  ];
  const { validation: none, ...unvalidated } = toy();
  await train(unvalidated, { engine: openToy(), overrides });
  await expect(findCheckpoint(join(folder, "best"))).rejects.toThrow("has no best checkpoint");
  await expect(findCheckpoint(join(newFolder(), "best"))).rejects.toThrow(/the run folder .* does not exist/);
  const { validation: _, ...unmeasured } = toy({ training: { keep_best: true } });
  await expect(train(unmeasured, { engine: openToy() })).rejects.toThrow("training.keep_best");
});
