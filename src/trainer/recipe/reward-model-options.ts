/** Which reward models score the episodes, and how their scores and the workflow's own reward become one. */
import { basename } from "node:path";
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import { own } from "../../own.ts";

export interface RewardModelOptions {
  models: readonly {
    /** A Hugging Face directory or hub id. */
    model: string;
    /** In its metrics: the last part of `model`, with a number if that is taken. */
    name: string;
    weight: RoleWeights;
  }[];
  /** The weight of the workflow's own reward; 1 for roles that are not named. */
  ownWeight: RoleWeights;
  /** Normalize scores by the moments that the models' files store. */
  normalize: boolean;
}

/** One weight for all roles, or a weight per role. */
export type RoleWeights = number | Readonly<Record<string, number>>;

/** @returns undefined if the role is not named */
export function weightOf(weights: RoleWeights, role: string): number | undefined {
  return typeof weights === "number" ? weights : own<number>(weights, role);
}

/** @throws UserError when the weights do not fit the models */
export function rewardModelOptions({ rllm }: Config): RewardModelOptions | undefined {
  const { model, model_weights: weights, own_weight: ownWeight, normalize } = rllm.reward;
  if (model === null) return undefined;
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
