import { expect, test } from "vitest";
import { composeConfig } from "../../config/compose.ts";
import { rewardModelOptions } from "./reward-model-options.ts";

const optionsOf = (...overrides: string[]) => rewardModelOptions(composeConfig({ overrides }).config);

test.each([
  [["rllm.reward={model: [./a, ./b], model_weights: [1]}"], "has 1 weights for the 2 models"],
  [["rllm.reward.model=./a", "data.mixed_mm_data=true"], "reward models read only text"],
])("%j is refused", (overrides, sentence) => {
  expect(() => optionsOf(...overrides)).toThrow(sentence);
});

test("images without a reward model, and a reward model without images, are accepted", () => {
  expect(optionsOf("data.mixed_mm_data=true")).toBeUndefined();
  expect(optionsOf("rllm.reward.model=./a")?.models).toEqual([{ model: "./a", name: "a", weight: 1 }]);
});
