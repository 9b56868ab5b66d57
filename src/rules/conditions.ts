/**
 * Settings that have no effect unless other settings, the machine or the script allow it; then all rules about what a run learns from, and
 * about teachers.
 */
import { isDeepStrictEqual } from "node:util";
import type { PolicyLossDefinition } from "../algorithms/loss-definition.ts";
import { namedLosses, type PolicyLossName } from "../algorithms/policy-losses.ts";
import { isRemote } from "../backends/backends.ts";
import { modelSource } from "../backends/local/models.ts";
import { samplerType, trainingProcesses } from "../backends/local/options.ts";
import {
  ability,
  below,
  builtInEstimator,
  clippingLosses,
  clips,
  contradicts,
  estimatorsThatNeed,
  hasCritic,
  hasEstimator,
  hasLoss,
  needs,
  needsValue,
  ownLosses,
  type Rule,
  stdEstimators,
  under,
  withOlderNames,
} from "../backends/rule.ts";
import { alternates, isOnGpu, startsServer } from "../backends/servers/started-server.ts";
import { actsOnAdvantages, comparesLikely, divergenceIn, learnsFromRewards, teachersIn } from "../backends/teachers.ts";
import type { Config } from "../config/schema.ts";
import { isPerStep } from "./contradictions.ts";

const algorithm = "rllm.algorithm";
const correction = `${algorithm}.rollout_correction`;
const workflow = "rllm.workflow";

/** The keys of a loss's constants. ppo's are those of the documents. */
const keysOf = (name: PolicyLossName, constants: readonly string[]) =>
  under(name === "ppo" ? algorithm : `${algorithm}.policy_loss`, ...constants);

const critic = `an estimator with a critic (rllm.algorithm.adv_estimator=${estimatorsThatNeed("values")})`;
const startsScoringServers = ({ rllm: { reward } }: Config) =>
  reward.model !== null && reward.use_engine && reward.engine_url.length === 0;
const hasKl = ({ rllm }: Config) => (rllm.algorithm.kl_beta ?? 0) > 0;
const processes = "local.processes above 1 (with LightRFT's flags: WORLD_SIZE)";
const isSharded = (config: Config) => trainingProcesses(config) > 1;
export const localEngine = "a local engine (rllm.backend=local, or tinker without a service)";

/** Whether the ratio of new to old probability can differ from 1. */
const hasRatios = ({ training, rllm: { algorithm } }: Config) =>
  training.num_minibatches * training.ppo_epochs > 1 || algorithm.rollout_correction.bypass_mode === true;
const several = `several optimizer steps per batch (training.num_minibatches or ppo_epochs above 1), or ${correction}.bypass_mode=true; with one step per batch, every ratio is 1`;

export const conditions: readonly Rule[] = [
  needs(
    "rllm.reward.remote_url or use_engine",
    under("rllm.reward", "batch_size", "timeout", "retries"),
    ({ rllm: { reward } }) => reward.remote_url.length > 0 || (reward.model !== null && reward.use_engine),
  ),
  needs(
    "rllm.rejection_sample.mode=episode, or enable=true without a mode",
    under("rllm.rejection_sample", "min_partial_solve_tasks", "max_rounds"),
    ({ rllm: { rejection_sample: rejection } }) =>
      (rejection.mode ?? (rejection.enable ? "episode" : "none")) === "episode",
  ),

  needs(
    "rllm.stepwise_advantage.mode=per_step or normalize_by_steps=true",
    ["rllm.stepwise_advantage.enable"],
    (config) => isPerStep(config) || config.rllm.stepwise_advantage.normalize_by_steps,
  ),
  needs(
    "rllm.stepwise_advantage.enable=true with mode=per_step, or an estimator of your own",
    under(`${workflow}.workflow_args`, "gamma", "reward_bonus_coeff"),
    (config) => isPerStep(config) || hasEstimator(config, (name) => builtInEstimator(name) === undefined),
  ),

  needs(critic, [...below("rllm.critic"), `${algorithm}.lam`], hasCritic),
  needs(
    `${algorithm}.use_precomputed_advantage=false, or a loss in the map`,
    [`${algorithm}.estimator_map`],
    ({ rllm: { algorithm } }) =>
      !algorithm.use_precomputed_advantage || Object.values(algorithm.estimator_map).some(Array.isArray),
  ),
  needs(`the estimator ${stdEstimators}`, [`${algorithm}.norm_adv_by_std_in_grpo`], (config) =>
    hasEstimator(config, (name) => readsStd(name)),
  ),

  ...namedLosses.map(([name, loss]) =>
    needsLoss(`the loss ${name}`, keysOf(name, Object.keys(loss.constants)), (one) => one === loss),
  ),
  needsLoss(`a loss that clips ratios (${clippingLosses})`, under(algorithm, "eps_clip", "eps_clip_high"), clips),
  needs(
    several,
    [
      ...under(algorithm, "eps_clip", "eps_clip_high"),
      ...namedLosses.flatMap(([name, { ratioConstants = [] }]) => keysOf(name, ratioConstants)),
    ],
    hasRatios,
  ),
  needs(
    `${algorithm}.kl_beta above 0, or a loss of your own that reads referenceLogprob`,
    [`${algorithm}.reference_model`],
    (config, script) =>
      hasKl(config) || ownLosses(config, script).some(({ inputs }) => inputs.includes("referenceLogprob")),
  ),
  needs(
    `${algorithm}.warmup_steps of 0 or less`,
    withOlderNames([`${algorithm}.warmup_steps_ratio`]),
    ({ rllm }) => rllm.algorithm.warmup_steps <= 0,
  ),
  needs(
    `${algorithm}.lr_schedule=linear or cosine`,
    [`${algorithm}.min_lr_ratio`],
    ({ rllm }) => rllm.algorithm.lr_schedule !== "constant",
  ),

  needs(
    "rllm.trainer.total_batches of 0 or less",
    ["rllm.trainer.total_epochs"],
    ({ rllm }) => (rllm.trainer.total_batches ?? 0) <= 0,
  ),
  needs("wandb in rllm.trainer.logger", ["rllm.trainer.wandb_entity"], ({ rllm }) =>
    rllm.trainer.logger.includes("wandb"),
  ),
  needs("tensorboard in rllm.trainer.logger", ["rllm.trainer.tensorboard_dir"], ({ rllm }) =>
    rllm.trainer.logger.includes("tensorboard"),
  ),

  needs(
    "a validation dataset in the script, or data.val_files",
    ["training.best_metric", ...under("rllm.trainer", "test_freq", "val_before_train")],
    ({ data, training }, script) =>
      (training.source !== "rollouts" && data.val_files !== null) || (script && script.validation !== undefined),
  ),
  needs(
    "a validation dataset in the script",
    [
      ...withOlderNames(["rllm.data.val_batch_size", ...below("rllm.rollout.val")]),
      ...["rllm.rollout.n_val", "validation.group_size"],
    ],
    (_, script) => script && script.validation !== undefined,
  ),
  needs(processes, ["local.sharding"], isSharded),
  needs(processes, under("local", "offload_optimizer", "offload_parameters"), isSharded),
  needs("local.sharding=fsdp or zero3, which shard the weights", ["local.offload_parameters"], ({ local }) =>
    ["fsdp", "zero3"].includes(local.sharding),
  ),
  needs(
    "local.sampler.type=vllm or sglang",
    under("local.sampler", "url", "timeout"),
    (config) => samplerType(config) !== "own",
  ),
  unsupported(
    needs(
      "local.sampler.type=own, since an inference server uses the processor of the model's folder",
      ["model.processor"],
      (config) => samplerType(config) === "own",
    ),
  ),
  needs(
    "local.sampler.url, the address of a running server",
    ["local.sampler.api_key"],
    ({ local: { sampler } }) => sampler.url !== null,
  ),
  needs(
    "an inference server that Hone starts (local.sampler.type=vllm without url, or rllm.reward.use_engine=true without engine_url)",
    under("local.sampler", "tensor_parallel", "memory_share", "devices"),
    (config) => startsServer(config) || startsScoringServers(config),
  ),
  needs("an NVIDIA GPU", ["local.sampler.memory_share"], isOnGpu),
  needs(
    "an inference server that Hone starts on the trainer's GPU, without asynchronous training",
    ["local.sampler.sleep"],
    (config) => startsServer(config) && isOnGpu(config) && alternates(config),
  ),
  unsupported(needs("an NVIDIA GPU", ["local.sampler.devices"], isOnGpu)),
  unsupported(
    needs(
      "an NVIDIA GPU that trains (local.device), and one training process (local.processes=1)",
      ["training.optimizer"],
      (config) => isOnGpu(config) && config.local.device !== "cpu" && !isSharded(config),
    ),
  ),
  {
    outcome: "no effect",
    keys: ["training.default_local_dir"],
    requires: "an explicit value, with rllm.trainer.run_dir unset",
    isMet: ({ origins }) => {
      const origin = origins.get("rllm.trainer.run_dir");
      return origin?.kind === "synced" && origin.from === "training.default_local_dir";
    },
  },
  needs(localEngine, below("local"), (config) => !isRemote(config)),
  unsupported(needs(localEngine, ["model.processor"], (config) => !isRemote(config))),
];

/** Assumed of a user's own estimator. */
function readsStd(name: string): boolean {
  const known = builtInEstimator(name);
  return known === undefined || known.readsStd === true;
}

/** A user's own loss may use any constant. */
function needsLoss(requires: string, keys: readonly string[], matches: (loss: PolicyLossDefinition) => boolean): Rule {
  return needs(requires, keys, (config) => hasLoss(config, matches));
}

/** What this machine or engine cannot do. */
function unsupported(rule: Rule): Rule {
  return { ...rule, outcome: "unsupported" };
}

// What settings require of what a run learns from: rollouts, rows or pairs.

/** What only an update from rollouts reads. Validation tasks are attempted as usual. */
const ofRollouts = [
  ...withOlderNames(["rllm.rollout.n", ...below("rllm.rollout.train")]),
  "training.group_size",
  ...below("rllm.algorithm", "lr_schedule", "warmup_steps", "warmup_steps_ratio", "min_lr_ratio", "router_replay"),
  ...below("rllm.stepwise_advantage"),
  ...below("rllm.critic"),
  ...below("rllm.compact_filtering"),
  ...below("rllm.rejection_sample"),
  ...below("rllm.dynamic_sampling"),
  ...below("rllm.reward.overlong"),
  ...under("rllm.reward", "clip", "running_norm", "running_norm_minus_mean"),
  ...under("rllm", "mask_truncated_samples", "filter_token_mismatch"),
  "rllm.agent.overlong_filter",
];

export const sources: readonly Rule[] = [
  {
    outcome: "invalid",
    keys: ["training.source"],
    isMet: ({ config, script }) => script === undefined || (script.source ?? "rollouts") === config.training.source,
    because: ({ script }) => `this experiment learns from ${script?.source ?? "rollouts"}`,
    hint: "hone sft learns from rows, hone dpo from pairs, hone train from rollouts",
    atDefault: true,
  },
  contradicts(
    ["rllm.async_training.enable"],
    "training.source=rollouts",
    ({ training, rllm }) => !rllm.async_training.enable || training.source === "rollouts",
  ),
  needsValue("training.source=rollouts", ofRollouts),
  needs(
    "hone sft or hone dpo",
    under("data", "train_files", "val_files", "max_length", "truncation"),
    ({ training }) => training.source !== "rollouts",
  ),
];

// What settings of `distillation` require, and what they do to other settings.

const section = "distillation";
const loss = `${section}.distillation_loss`;
const older = "rllm.distill";
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
  needsValue(`${section}.enabled=true`, [
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
