/** Which reward models score the episodes, and how their scores and the workflow's own reward become one. */
import { basename } from "node:path";
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import type { RewardModelOptions } from "../rollouts/reward-models.ts";

/** @throws UserError when the weights do not fit the models, or conversations have images */
export function rewardModelOptions({ data, rllm }: Config): RewardModelOptions | undefined {
  const { model, model_weights: weights, own_weight: ownWeight, normalize } = rllm.reward;
  if (model === null) return undefined;
  if (data.mixed_mm_data) {
    throw new UserError(
      "data.mixed_mm_data=true and rllm.reward.model: reward models read only text, so conversations with images would have no reward",
      { hint: "grade them with a reward function" },
    );
  }
  const listed = [model].flat();
  if (weights.length > 0 && weights.length !== listed.length) {
    throw new UserError(
      `rllm.reward.model_weights has ${weights.length} weights for the ${listed.length} models of rllm.reward.model`,
      { hint: "set one weight per model, or none" },
    );
  }
  // Names of metrics besides the models'.
  const taken = new Set(["own", "failed"]);
  const models = listed.map((model, index) => {
    const plain = basename(model);
    let name = plain;
    for (let number = 2; taken.has(name); number++) name = `${plain}-${number}`;
    taken.add(name);
    return { model, name, weight: weights[index] ?? 1 };
  });
  return { models, ownWeight, normalize };
}
