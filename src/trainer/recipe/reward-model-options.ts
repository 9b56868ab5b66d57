/** Which reward models score the episodes, and how their scores and the workflow's own reward become one. */
import { basename } from "node:path";
import type { Config } from "../../config/schema.ts";
import type { RewardModelOptions } from "../rollouts/reward-models.ts";

export function rewardModelOptions({ rllm }: Config): RewardModelOptions | undefined {
  const { model, model_weights: weights, own_weight: ownWeight, normalize } = rllm.reward;
  if (model === null) return undefined;
  const listed = [model].flat();
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
