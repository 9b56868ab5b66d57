/** The models that a run opens on its engine beside the policy, whose memory is computed before anything is loaded. */
import type { OtherModel } from "../../backends/engine.ts";
import type { Config } from "../../config/schema.ts";
import { needsEstimate } from "../recipe/credit-options.ts";
import { teachingOptions } from "../recipe/distillation-options.ts";
import { klOptions } from "../recipe/loss-options.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { rewardModelOptions } from "../recipe/reward-model-options.ts";
import { criticSpec, referenceSpec } from "../recipe/update-options.ts";

type Parts = Pick<Recipe, "teaching" | "rewardModels"> & { models: Pick<Recipe["models"], "reference" | "critic"> };

/** What a configuration names without its experiment, which may define losses and estimators of its own. */
export function otherModelsIn(config: Config): OtherModel[] {
  const reference = klOptions(config) && referenceSpec(config);
  const critic = needsEstimate(config, {}, "values") ? criticSpec(config) : undefined;
  const asked = { teaching: teachingOptions(config), rewardModels: rewardModelOptions(config) };
  return otherModels({ models: { reference, critic }, ...asked }, config);
}

export function otherModels({ models, teaching, rewardModels }: Parts, { model, rllm }: Config): OtherModel[] {
  const frozen = (role: OtherModel["role"], name: string): OtherModel => ({
    role,
    adapter: { kind: "none" },
    ...(name === model.name ? {} : { model: name }),
  });
  const teachers = teaching?.teachers.flatMap((teacher) => (teacher.kind === "model" ? [teacher.model] : [])) ?? [];
  const scorers = rllm.reward.use_engine ? [] : (rewardModels?.models ?? []);
  return [
    ...(models.reference ? [{ role: "reference model" as const, ...models.reference }] : []),
    ...(models.critic ? [{ role: "critic" as const, ...models.critic }] : []),
    ...teachers.map((name) => frozen("teacher", name)),
    ...scorers.map(({ model: name }) => ({ ...frozen("reward model", name), model: name })),
  ];
}
