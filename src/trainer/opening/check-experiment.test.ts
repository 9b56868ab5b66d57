import { expect, test } from "vitest";
import { fromRows } from "../../data/from-rows.ts";
import { checkExperiment } from "./check-experiment.ts";

const train = fromRows("rows", [{ left: 1 }]);

test.each<[object, string, string | undefined]>([
  [{ train: [{ left: 1 }] }, "the experiment's train must be a dataset, not a list", "fromRows(...) makes one"],
  [{ train: 3 }, "the experiment's train must be a dataset, not 3", "generated, fromRows or openDataset"],
  [{ train: Promise.resolve(train) }, "not a promise: write await before it", "openDataset"],
  [{ validation: train }, "the experiment has no train dataset", "fromRows"],
  [{ train, validation: {} }, "the experiment's validation must be a dataset, not an object", "fromRows"],
  [{ train, workflow: { run: () => 1 } }, "the experiment's workflow must be a function, not an object", "singleTurn"],
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
