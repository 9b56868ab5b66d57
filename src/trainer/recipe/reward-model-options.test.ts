import { expect, test } from "vitest";
import { composeConfig } from "../../config/compose.ts";
import { rewardModelOptions } from "./reward-model-options.ts";

const optionsOf = (...overrides: string[]) => rewardModelOptions(composeConfig({ overrides }).config);

test("a reward model has a name and a weight", () => {
  expect(optionsOf()).toBeUndefined();
  expect(optionsOf("rllm.reward.model=./a")?.models).toEqual([{ model: "./a", name: "a", weight: 1 }]);
});
