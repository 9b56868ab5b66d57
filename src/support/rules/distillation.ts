/** What settings of `distillation` require, and what they do to other settings. */
import { isDeepStrictEqual } from "node:util";
import { modelSource } from "../../backends/local/models.ts";
import { isRemote } from "../../backends/registry/open-engine.ts";
import type { Rule } from "../../backends/rule.ts";
import {
  actsOnAdvantages,
  comparesLikely,
  divergenceIn,
  learnsFromRewards,
  teachersIn,
} from "../../backends/teachers/teachers-in.ts";
import type { Config } from "../../config/schema.ts";
import { ability, below, contradicts, needs, needsValue, under } from "./make-rules.ts";

const section = "distillation";
const loss = `${section}.distillation_loss`;
const older = "rllm.distill";
const algorithm = "rllm.algorithm";
const teacherKeys = [`${section}.teacher_models`, ...under(`${older}.teacher_rollout_args`, "model", "base_url")];

/** Whether both names are of the same model. */
function isPolicy(config: Config, name: string): boolean {
  const { model } = config;
  if (name === model.name) return true;
  // The names of a service are not paths.
  if (isRemote(config)) return false;
  try {
    return isDeepStrictEqual(modelSource(name), modelSource(model.name));
  } catch {
    return false;
  }
}

const models = (config: Config) => teachersIn(config).flatMap((one) => (one.kind === "model" ? one.model : []));
const usesTopk = "a divergence over several tokens (forward_kl_topk, cross_entropy_topk, reverse_kl_topk or jsd)";

export const distillationRules: readonly Rule[] = [
  needsValue(`${section}.enabled`, true, [
    ...below(section, "enabled"),
    ...below(older, "enable").filter((key) => key !== `${older}.shared_tokenizer`),
  ]),
  {
    outcome: "unsupported",
    keys: [`${older}.shared_tokenizer`],
    requires: "a teacher with the policy's tokenizer, which scores the policy's own tokens",
    isMet: ({ config }) => config.rllm.distill.shared_tokenizer,
  },
  contradicts(
    [`${section}.enabled`, `${older}.enable`],
    `a teacher: ${section}.teacher_models, or the experiment's teacherPrompt`,
    (config, script) =>
      teachersIn(config).length > 0 || (script === undefined ? undefined : script.teachesItself === true),
    `+${section}.teacher_models.NAME.model_path=MODEL`,
  ),
  contradicts(
    [`${section}.enabled`, `${older}.enable`],
    "training.source=rollouts, because a teacher scores the policy's own replies",
    ({ training }) => training.source === "rollouts",
    "hone train learns from a teacher",
  ),
  contradicts(
    teacherKeys,
    "another model than model.name: a policy learns nothing from itself without the experiment's teacherPrompt",
    (config, script) =>
      !config.distillation.enabled ||
      script?.teachesItself === true ||
      !models(config).some((name) => isPolicy(config, name)),
    "name another model",
  ),
  contradicts(
    [`${section}.teacher_models`],
    "a different key for each of several teachers",
    (config) => {
      const keys = teachersIn(config).map(({ key }) => key);
      return keys.length < 2 || (!keys.includes(null) && new Set(keys).size === keys.length);
    },
    `set key, the value of the column ${section}.teacher_key in the rows of this teacher`,
  ),
  contradicts(
    under(loss, "loss_mode", "use_policy_gradient"),
    "use_policy_gradient=true with k1: as a loss, k1 has an expected gradient of zero",
    (config) => config.distillation.distillation_loss.loss_mode !== "k1" || actsOnAdvantages(config),
    "use_policy_gradient=null chooses by loss_mode",
  ),
  contradicts(
    under(loss, "loss_mode", "use_policy_gradient"),
    "use_policy_gradient=false with a divergence over several tokens, because an advantage is about the sampled token",
    (config) => divergenceIn(config) === undefined || !actsOnAdvantages(config),
    "use_policy_gradient=null chooses by loss_mode",
  ),
  ability(
    [`${loss}.loss_mode`],
    "log-probabilities of other tokens than the sampled ones",
    ({ outputs }, _value, { config }) => divergenceIn(config) === undefined || outputs.includes("targets"),
  ),
  ability([`${loss}.loss_mode`], "the most likely tokens of a teacher", ({ outputs, sampling }, _value, { config }) => {
    if (!comparesLikely(config) || outputs.includes("most_likely")) return true;
    const teachers = teachersIn(config);
    if (teachers.length === 0) return false;
    return teachers.every(({ kind }) => kind === "server") || sampling.includes("top_prompt_logprobs");
  }),
  ability(
    teacherKeys,
    "models other than the run's own; a teacher can be on a server (base_url)",
    ({ otherModels }, _value, { config }) => otherModels || models(config).every((name) => isPolicy(config, name)),
  ),
  needs("several teachers", [`${section}.teacher_key`], (config) => teachersIn(config).length > 1),
  needs(
    "policy gradient (use_policy_gradient=true, or loss_mode=k1)",
    [`${loss}.kl_discount_factor`],
    actsOnAdvantages,
  ),
  needs(usesTopk, [`${loss}.log_prob_min_clamp`], (config) => divergenceIn(config) !== undefined),
  needs(`${usesTopk}; with jsd, beta below 1`, [`${loss}.topk`], comparesLikely),
  needs("loss_mode=jsd", under(loss, "beta", "add_tail"), (config) => divergenceIn(config) === "jsd"),
  ...[
    ["rllm.dynamic_sampling.enable", ({ rllm }: Config) => rllm.dynamic_sampling.enable],
    ["rllm.rejection_sample.enable", ({ rllm }: Config) => rllm.rejection_sample.enable],
    ["rllm.rejection_sample.mode", ({ rllm }: Config) => rllm.rejection_sample.mode === "episode"],
    ["rllm.rejection_sample.filter_uniform_groups", ({ rllm }: Config) => rllm.rejection_sample.filter_uniform_groups],
  ].map(([key, isOn]) =>
    contradicts(
      [key as string],
      `${loss}.use_task_rewards=true with a teacher, because it selects groups by their rewards`,
      (config) => learnsFromRewards(config) || !(isOn as (config: Config) => boolean)(config),
      "remove one of the two",
    ),
  ),
  needs(
    `${loss}.use_task_rewards=true, or ${section}.enabled=false`,
    [
      ...under(algorithm, "adv_estimator", "estimator_preset", "norm_adv_by_std_in_grpo", "use_precomputed_advantage"),
      ...under(algorithm, "gamma", "lam", "advantages_norm", "advantage_clip"),
      ...under("rllm.reward", "clip", "running_norm"),
      ...below("rllm.critic"),
    ],
    learnsFromRewards,
  ),
];
