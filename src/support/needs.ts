/**
 * What settings require besides a valid value: an ability of the engine, or another setting. The start-up checks,
 * `hone config --explain` and the reference pages read these tables.
 */
import { isDeepStrictEqual } from "node:util";
import { splitEstimatorMap } from "../algorithms/advantages/estimate-advantages.ts";
import { type EstimatorSpec, estimators } from "../algorithms/estimators/index.ts";
import { lossAliases, policyLosses } from "../algorithms/losses/policy-losses.ts";
import type { Capabilities } from "../backends/engine.ts";
import { isRemote } from "../backends/registry/open-engine.ts";
import { alternates, isOnGpu, startsServer } from "../backends/registry/own-server.ts";
import { sharedKeys } from "../config/compose/sync/shared-keys.ts";
import type { ComposedConfig } from "../config/compose.ts";
import { configKeys } from "../config/describe.ts";
import type { Config } from "../config/schema.ts";
import { valueAt } from "../config/tree/value-at.ts";
import { own } from "../own.ts";

/** Settings that are refused on an engine without some ability. */
export interface EngineNeed {
  keys: readonly string[];
  /** The ability, after "requires". */
  requires: string;
  /** `value`: undefined asks whether any value is possible. */
  isMet: (capabilities: Capabilities, value: unknown) => boolean;
}

/** Settings that have no effect unless another setting has some value. */
export interface SettingNeed {
  keys: readonly string[];
  /** The other setting, after "requires". */
  requires: string;
  isMet: (composed: Pick<ComposedConfig, "config" | "origins">) => boolean;
  /** Whether the run is refused; otherwise it only warns. */
  refused: boolean;
}

const algorithm = "rllm.algorithm";
const correction = `${algorithm}.rollout_correction`;
const workflow = "rllm.workflow";

/** The outputs that estimators need in addition to log-probabilities. */
const estimatorOutputs = [
  ["values", "a critic (gae)"],
  ["concentration", "the sums of squared probabilities (optimal_token_baseline)"],
] as const;

export const engineNeeds: readonly EngineNeed[] = [
  {
    keys: under(algorithm, "entropy_coeff", "high_entropy_token_ratio"),
    requires: "entropies",
    isMet: ({ outputs }) => outputs.includes("entropy"),
  },
  ...estimatorOutputs.map(
    ([output, requires]): EngineNeed => ({
      keys: under(algorithm, "adv_estimator", "estimator_map"),
      requires,
      isMet: ({ outputs }, value) =>
        outputs.includes(output) || !estimatorsIn(value).some((name) => builtInEstimator(name)?.needs === output),
    }),
  ),
  {
    keys: ["rllm.reward.model"],
    requires: "reward models, or servers for them (rllm.reward.use_engine=true)",
    isMet: ({ outputs }) => outputs.includes("scores"),
  },
  {
    keys: ["rllm.critic.model", `${algorithm}.reference_model`],
    requires: "models other than the run's own",
    isMet: ({ otherModels }, value) => otherModels || value === null,
  },
  {
    keys: ["data.mixed_mm_data", "model.processor"],
    requires: "images",
    isMet: ({ images }, value) => images || value === null || value === false,
  },
  {
    keys: ["model.train_vision"],
    requires: "training of the vision part",
    isMet: ({ images, trainsVision }, value) => (images && trainsVision === true) || value === false,
  },
  {
    keys: ["model.lora_rank"],
    requires: "training of all weights",
    isMet: ({ adapters }, value) => value !== 0 || adapters.includes("full"),
  },
  ...(["top_p", "top_k", "min_p"] as const).map(
    (name): EngineNeed => ({
      keys: withOlderNames(under("rllm.rollout", `train.${name}`, `val.${name}`)),
      requires: `sampling with ${name}`,
      isMet: ({ sampling }) => sampling.includes(name),
    }),
  ),
];

/** The constants of single losses. */
const lossConstants: Readonly<Record<string, readonly string[]>> = {
  gspo: ["gspo_gradient"],
  cispo: ["cispo_low", "cispo_high"],
  dro: ["dro_beta"],
  sapo: ["tau_pos", "tau_neg"],
  clip_cov: ["clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"],
  kl_cov: ["kl_cov_ratio", "ppo_kl_coef"],
  cpgd: ["cpgd_drift_coef"],
};
const clippingLosses = ["ppo", "cispo", "gspo", "gmpo", "clip_cov", "cpgd"];

const critic = "an estimator with a critic (rllm.algorithm.adv_estimator=gae)";
const hasCritic = (config: Config) => hasEstimator(config, (name) => builtInEstimator(name)?.needs === "values");
const startsScoringServers = ({ rllm: { reward } }: Config) => reward.use_engine && reward.engine_url.length === 0;
const hasKl = ({ rllm }: Config) => (rllm.algorithm.kl_beta ?? 0) > 0;
const isSharded = ({ local }: Config) => local.processes > 1;
export const localEngine = "a local engine (rllm.backend=local, or tinker without a service)";
const isPerStep = ({ rllm: { stepwise_advantage: stepwise } }: Config) =>
  stepwise.enable && stepwise.mode === "per_step";

export const settingNeeds: readonly SettingNeed[] = [
  needsValue("rllm.async_training.enable", true, below("rllm.async_training", "enable")),
  needsValue("rllm.compact_filtering.enable", true, below("rllm.compact_filtering", "enable")),
  needsValue("rllm.dynamic_sampling.enable", true, ["rllm.dynamic_sampling.max_rounds"]),
  needsValue("rllm.reward.overlong.enable", true, below("rllm.reward.overlong", "enable")),
  refusing(needsValue("rllm.reward.running_norm", true, ["rllm.reward.running_norm_minus_mean"])),
  refusing(
    needs(
      "rllm.reward.model",
      under("rllm.reward", "model_weights", "own_weight", "normalize", "use_engine"),
      ({ rllm }) => rllm.reward.model !== null,
    ),
  ),
  refusing(needsValue("rllm.reward.use_engine", true, ["rllm.reward.engine_url"])),
  needs(
    "rllm.reward.remote_url or use_engine",
    under("rllm.reward", "batch_size", "timeout", "retries"),
    ({ rllm: { reward } }) => reward.remote_url.length > 0 || reward.use_engine,
  ),
  needsValue("rllm.episode_logging.log_episodes", true, ["rllm.episode_logging.episode_log_dir"]),
  refusing(needsValue("rllm.rejection_sample.enable", true, ["rllm.rejection_sample.multiplier"])),
  needs(
    "rllm.rejection_sample.mode=episode, or enable=true without a mode",
    under("rllm.rejection_sample", "min_partial_solve_tasks", "max_rounds"),
    ({ rllm: { rejection_sample: rejection } }) =>
      (rejection.mode ?? (rejection.enable ? "episode" : "none")) === "episode",
  ),

  refusing(
    needsValue("rllm.stepwise_advantage.enable", true, under("rllm.stepwise_advantage", "mode", "normalize_by_steps")),
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

  needs(critic, under("rllm.critic", "learning_rate", "value_clip", "value_coef"), hasCritic),
  refusing(needs(critic, ["rllm.critic.model", "rllm.critic.warmup_steps", `${algorithm}.lam`], hasCritic)),
  needsValue(`${algorithm}.use_precomputed_advantage`, false, under(algorithm, "adv_estimator", "estimator_preset")),
  needs("the estimator grpo or group_norm", [`${algorithm}.norm_adv_by_std_in_grpo`], (config) =>
    hasEstimator(config, (name) => ["grpo", "group_norm"].includes(name) || builtInEstimator(name) === undefined),
  ),

  ...Object.entries(lossConstants).map(([loss, names]) =>
    needsLoss(`the loss ${loss}`, under(`${algorithm}.policy_loss`, ...names), [loss]),
  ),
  needsLoss(
    `a loss that clips ratios (${clippingLosses.join(", ")})`,
    under(algorithm, "eps_clip", "eps_clip_high"),
    clippingLosses,
  ),
  needsLoss("the loss ppo", [`${algorithm}.clip_ratio_c`], ["ppo"]),
  needsValue(`${algorithm}.loss_agg_mode`, "seq-mean-token-sum-norm", [`${algorithm}.loss_scale_factor`]),
  refusing(needs(`${algorithm}.kl_beta above 0`, under(algorithm, "kl_target", "reference_model"), hasKl)),
  needs(`${algorithm}.kl_beta above 0`, under(algorithm, "kl_estimator", "use_kl_in_reward"), hasKl),
  needs(`${algorithm}.kl_target`, [`${algorithm}.kl_horizon`], ({ rllm }) => rllm.algorithm.kl_target !== null),
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
  refusing(
    needs(
      `${correction}.bypass_mode=false`,
      [`${correction}.tis_mode`],
      ({ rllm }) => rllm.algorithm.rollout_correction.bypass_mode !== true,
    ),
  ),
  needs(
    `${correction}.tis_mode`,
    under(correction, "tis_cap", "tis_normalize"),
    ({ rllm }) => rllm.algorithm.rollout_correction.tis_mode !== null,
  ),
  needs(
    `${correction}.rs_mode`,
    [`${correction}.rs_threshold`],
    ({ rllm }) => (rllm.algorithm.rollout_correction.rs_mode ?? []).length > 0,
  ),

  needsValue("rllm.agent.engine_args.n_parallel_agents", null, [`${workflow}.n_parallel_tasks`]),
  refusing(
    needsValue(`${workflow}.use_workflow`, true, [
      `${workflow}.name`,
      ...under(`${workflow}.workflow_args`, "agent_cls", "agent_args", "env_cls", "env_args"),
    ]),
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
  needs("rllm.trainer.plot_every above 0", ["rllm.trainer.plot_dir"], ({ rllm }) => rllm.trainer.plot_every > 0),
  // Asynchronous steps have rllm.async_training.mini_batch_size tasks.
  needsValue("rllm.async_training.enable", false, withOlderNames(["rllm.data.train_batch_size"])),

  needsValue("rllm.gateway.store", "sqlite", [
    "rllm.gateway.db_path",
    ...under("rllm.sdk.store", "path", "retention_days"),
  ]),
  needsValue("rllm.gateway.db_path", null, ["rllm.sdk.store.path"]),
  needsValue("rllm.gateway.host", null, ["rllm.sdk.proxy.host"]),
  needsValue("rllm.gateway.port", null, ["rllm.sdk.proxy.port"]),

  needs(
    "model.lora_rank above 0",
    under("model", "lora_alpha", "train_unembed", "train_attn", "train_mlp"),
    ({ model }) => model.lora_rank > 0,
  ),
  needsValue("training.resume_mode", "path", ["training.resume_from_path"]),
  needs("local.processes above 1", ["local.sharding"], isSharded),
  refusing(
    needs("local.device=auto, cuda or cpu", ["local.processes"], ({ local }) =>
      ["auto", "cuda", "cpu"].includes(local.device),
    ),
  ),
  refusing(needs("local.processes above 1", under("local", "offload_optimizer", "offload_parameters"), isSharded)),
  refusing(
    needs("local.sharding=fsdp or zero3, which shard the weights", ["local.offload_parameters"], ({ local }) =>
      ["fsdp", "zero3"].includes(local.sharding),
    ),
  ),
  refusing(
    needs(
      "local.processes to be a multiple of it",
      ["local.sequence_parallel"],
      ({ local }) => local.processes % local.sequence_parallel === 0,
    ),
  ),
  refusing(
    needs(
      "local.sampler.type=vllm or sglang",
      under("local.sampler", "url", "timeout"),
      ({ local }) => local.sampler.type !== "own",
    ),
  ),
  refusing(
    needs(
      "local.sampler.type=own, since an inference server uses the processor of the model's folder",
      ["model.processor"],
      ({ local }) => local.sampler.type === "own",
    ),
  ),
  refusing(
    needs(
      "local.sampler.url, the address of a running server",
      ["local.sampler.api_key"],
      ({ local: { sampler } }) => sampler.url !== null,
    ),
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
  refusing(needs("an NVIDIA GPU", ["local.sampler.devices"], isOnGpu)),
  {
    keys: ["training.default_local_dir"],
    requires: "an explicit value, with rllm.trainer.run_dir unset",
    isMet: ({ origins }) => {
      const origin = origins.get("rllm.trainer.run_dir");
      return origin?.kind === "synced" && origin.from === "training.default_local_dir";
    },
    refused: false,
  },
  needs(localEngine, below("local"), (config) => !isRemote(config)),
  refusing(needs(localEngine, ["model.processor"], (config) => !isRemote(config))),
];

function needs(requires: string, keys: readonly string[], isMet: (config: Config) => boolean): SettingNeed {
  return { keys, requires, isMet: ({ config }) => isMet(config), refused: false };
}

function needsValue(key: string, value: string | boolean | null, keys: readonly string[]): SettingNeed {
  return needs(`${key}=${value}`, keys, (config) => isDeepStrictEqual(valueAt(config, key), value));
}

/** A user's own loss may use any constant. */
function needsLoss(requires: string, keys: readonly string[], losses: readonly string[]): SettingNeed {
  return needs(requires, keys, (config) =>
    lossNames(config).some((name) => losses.includes(name) || !Object.hasOwn(policyLosses, name)),
  );
}

function refusing(need: SettingNeed): SettingNeed {
  return { ...need, refused: true };
}

function under(section: string, ...names: string[]): string[] {
  return names.map((name) => `${section}.${name}`);
}

/** All keys of a section, without those named. */
function below(section: string, ...except: string[]): string[] {
  return [...configKeys.keys()].filter(
    (key) => key.startsWith(`${section}.`) && !under(section, ...except).includes(key),
  );
}

/** Keys of `rllm` with their other names. */
function withOlderNames(keys: readonly string[]): string[] {
  return keys.flatMap((key) => [key, ...sharedKeys.filter(([, rllm]) => rllm === key).map(([native]) => native)]);
}

const builtInEstimator = (name: string): EstimatorSpec | undefined => own<EstimatorSpec>(estimators, name);

/** The estimators in a value of `adv_estimator` or `estimator_map`. */
function estimatorsIn(value: unknown): string[] {
  if (value === undefined || typeof value === "string") return value === undefined ? [] : [value];
  return Object.values(splitEstimatorMap(value as Config["rllm"]["algorithm"]["estimator_map"]).byRole);
}

function hasEstimator({ rllm: { algorithm } }: Config, matches: (name: string) => boolean): boolean {
  return [algorithm.adv_estimator, ...estimatorsIn(algorithm.estimator_map)].some(matches);
}

/** The losses of all roles under Hone's own names. */
function lossNames({ rllm: { algorithm } }: Config): string[] {
  const { lossByRole } = splitEstimatorMap(algorithm.estimator_map);
  const names = [algorithm.loss_fn ?? "ppo", ...Object.values(lossByRole), ...Object.values(algorithm.loss_fn_map)];
  return names.map((name) => own<string>(lossAliases, name) ?? name);
}
