/**
 * The configuration, compiled once into the options of each stage: the map from keys to stages. `src/rules` has checked
 * it, so nothing is checked here. Stages read these options, not the configuration.
 */
import { basename } from "node:path";
import {
  type AdvantageOptions,
  estimatorNamed,
  splitEstimatorMap,
  type TokenAdvantageOptions,
} from "../algorithms/advantages.ts";
import type { CustomLoss } from "../algorithms/custom-loss.ts";
import { type EstimatorSpec, estimatorPresets } from "../algorithms/estimators.ts";
import type { KlOptions } from "../algorithms/kl.ts";
import { rejectionRules } from "../algorithms/off-policy.ts";
import { needsReference } from "../algorithms/policy-loss.ts";
import { epsClip, lossByName, type PolicyLossName } from "../algorithms/policy-losses.ts";
import type { Capabilities, LearnerSpec, OtherModel, PolicySpec } from "../backends/engine.ts";
import { adapterSpec } from "../backends/engine-parts.ts";
import { comparesLikely, learnsFromRewards } from "../backends/teachers.ts";
import { ownValue } from "../base/values.ts";
import type { ComposedConfig } from "../config/compose.ts";
import type { Config } from "../config/schema.ts";
import { tasksPerDraw, tasksPerStep } from "../data/dataset.ts";
import { parseOnAgentError, type RunRolloutsOptions } from "../rollout/rollouts.ts";
import { type GatheringOptions, maskedReasons } from "../trajectories/groups.ts";
import type { CreditOptions } from "./credit.ts";
import type { Experiment } from "./experiment.ts";
import type { AdamOptions } from "./optimizer-steps.ts";
import { asyncOptions, asyncWarnings, planOf } from "./plan.ts";
import { resumeOptions } from "./resume.ts";
import type { RewardModelOptions } from "./reward-models.ts";
import type { Attempts, RolloutOptions } from "./rollouts.ts";
import { teacherTerms, teachingOptions } from "./teachers.ts";
import type { CorrectionOptions, UpdateOptions } from "./update.ts";

export type RunOptions = ReturnType<typeof compileOptions>;

export function compileOptions(
  composed: Pick<ComposedConfig, "config" | "origins">,
  capabilities: Capabilities,
  experiment: Experiment<unknown>,
) {
  const { config } = composed;
  const { estimators, source } = experiment;
  const { rllm, data, training } = config;
  const plan = planOf(experiment, config);
  const update = updateOptions(config, experiment, capabilities, plan.totalSteps);
  const compares = source ? source.needsReference : needsReference(update.loss) || update.kl !== undefined;
  const judges = !source && needsEstimate(config, estimators, "values") && !rllm.trainer.val_only;
  const attempts = attemptsOf("train", rllm.rollout.n, rllm.rollout.train);
  return {
    /** The capabilities of the engine that it was compiled for. */
    capabilities,
    plan,
    models: {
      policy: { adapter: adapterSpec(config) } satisfies PolicySpec,
      reference: compares ? referenceSpec(config) : undefined,
      critic: judges ? criticSpec(config) : undefined,
    },
    teaching: teachingOptions(config),
    rewardModels: rewardModelOptions(config),
    tasks: {
      batchSize: source ? data.train_batch_size : tasksPerDraw(config),
      seed: rllm.trainer.seed,
      shuffle: data.shuffle,
      partial: source !== undefined,
    },
    rollouts: rolloutOptions(config),
    attempts,
    /** One more reply to each task, the most likely one, if an estimator compares with it. */
    greedy: needsEstimate(config, estimators, "greedy_baseline")
      ? { ...attempts, rollouts: 1, sampling: { ...attempts.sampling, temperature: 0 } }
      : undefined,
    grouping: {
      masked: maskedReasons(rllm.compact_filtering),
      // If failures leave only one member in a group, it cannot be compared. With one rollout per task, estimators do not compare.
      minimum: learnsFromRewards(config) ? Math.min(rllm.rejection_sample.min_trajs_per_group, rllm.rollout.n) : 1,
    },
    gathering: gatheringOptions(config),
    credit: creditOptions(config, estimators),
    sequences: {
      maxLength: training.max_length,
      truncated: rllm.mask_truncated_samples,
      overlong: rllm.agent.overlong_filter,
      filterTokenMismatch: rllm.filter_token_mismatch,
    },
    update,
    /** Undefined for synchronous training. */
    asynchronous: rllm.async_training.enable ? asyncOptions(config) : undefined,
    validation: {
      atOnce: data.val_batch_size,
      attempts: attemptsOf("validate", rllm.rollout.n_val, rllm.rollout.val),
    },
    checkpoints: {
      bestMetric: training.best_metric,
      keepBest: training.keep_best,
      retention: { maxNumber: training.max_ckpt_num, maxBytes: training.max_ckpt_mem * 1e9 },
    },
    resume: resumeOptions(config),
    record: {
      plan,
      plotEvery: rllm.trainer.plot_every,
      episodeLog: rllm.episode_logging.log_episodes ? rllm.episode_logging.episode_log_dir : undefined,
      maxResponseLength: data.max_response_length,
    },
    maxBadSteps: rllm.trainer.max_bad_steps,
    /** Warnings for the user. */
    warnings: asyncWarnings(config),
  };
}

// Rollouts.

function attemptsOf(
  purpose: Attempts["purpose"],
  rollouts: number,
  sampling: Config["rllm"]["rollout"]["train"],
): Attempts {
  const { temperature, top_p: topP, top_k: topK, min_p: minP, max_tokens: maxTokens } = sampling;
  return { purpose, rollouts, sampling: { temperature, topP, topK, minP, maxTokens } };
}

function rolloutOptions({ rllm, data, training }: Config): RolloutOptions {
  const { retry_limit, raise_on_error, on_agent_error, workflow_args } = rllm.workflow;
  const { set_up_timeout, score_timeout, tear_down_timeout, warm_queue_size } = rllm.workflow;
  const { max_steps, trajectory_timeout } = rllm.agent;
  const limits: RunRolloutsOptions<unknown>["limits"] = { tearDownSeconds: tear_down_timeout };
  if (set_up_timeout !== null) limits.setUpSeconds = set_up_timeout;
  if (trajectory_timeout !== null) limits.runSeconds = trajectory_timeout;
  if (score_timeout !== null) limits.scoreSeconds = score_timeout;
  return {
    seed: rllm.trainer.seed,
    atOnce: rllm.agent.engine_args.n_parallel_agents ?? rllm.workflow.n_parallel_tasks,
    limits: { maxPromptLength: data.max_prompt_length, maxLength: training.max_length },
    grouping: { groupBy: rllm.sdk.processing.groupby_key, nameBy: rllm.sdk.processing.traj_name_key },
    routing: rllm.algorithm.router_replay === "R3",
    enforceSampling: rllm.gateway.client_sampling === "ignore",
    attempts: {
      retryLimit: retry_limit,
      raiseOnError: raise_on_error,
      onAgentError: parseOnAgentError(on_agent_error),
      timeoutSeconds: workflow_args.timeout,
      limits,
      maxSteps: max_steps,
      warmQueueSize: warm_queue_size,
      shaping: { gamma: workflow_args.gamma, rewardBonus: workflow_args.reward_bonus_coeff },
    },
  };
}

function gatheringOptions(config: Config): GatheringOptions {
  const { rejection_sample: rejection, dynamic_sampling: dynamic } = config.rllm;
  const byEpisode = (rejection.mode ?? (rejection.enable ? "episode" : "none")) === "episode";
  return {
    tasks: tasksPerStep(config),
    partial: byEpisode ? rejection.min_partial_solve_tasks : undefined,
    dynamic: dynamic.enable,
    maxDraws: Math.max(byEpisode ? rejection.max_rounds : 1, dynamic.enable ? dynamic.max_rounds : 1),
  };
}

/** Which reward models score the episodes, and how their scores and the workflow's own reward become one. */
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

// Credit: rewards and advantages.

/** The experiment's own estimators. */
type CustomEstimators = AdvantageOptions["custom"];

function advantageOptions(config: Config, custom: CustomEstimators): TokenAdvantageOptions {
  const { algorithm } = config.rllm;
  // Advantages that the workflow sets are not changed by an estimator, such as one that whitens; nor are those without rewards.
  const estimated = !algorithm.use_precomputed_advantage && learnsFromRewards(config);
  return {
    ...estimatorPresets[algorithm.estimator_preset],
    estimator: estimated ? algorithm.adv_estimator : "grpo",
    std: algorithm.norm_adv_by_std_in_grpo,
    byRole: estimated ? splitEstimatorMap(algorithm.estimator_map).byRole : {},
    gamma: algorithm.gamma,
    whiten: algorithm.advantages_norm,
    clip: algorithm.advantage_clip,
    custom: custom ?? {},
  };
}

function creditOptions(config: Config, custom: CustomEstimators): CreditOptions {
  const { algorithm, reward, rejection_sample, stepwise_advantage: stepwise, workflow } = config.rllm;
  const { enable, buffer_len: buffer, penalty_factor: factor } = reward.overlong;
  return {
    advantages: advantageOptions(config, custom),
    source: !learnsFromRewards(config)
      ? "none"
      : algorithm.use_precomputed_advantage
        ? "workflow"
        : stepwise.enable && stepwise.mode === "per_step"
          ? "steps"
          : "trajectories",
    stepGamma: workflow.workflow_args.gamma,
    shareAmongSteps: stepwise.enable && stepwise.normalize_by_steps,
    overlong: enable ? { maxLength: config.data.max_response_length, buffer, factor } : undefined,
    runningNorm: reward.running_norm ? { center: reward.running_norm_minus_mean } : undefined,
    clip: reward.clip,
    dropUniformGroups: rejection_sample.filter_uniform_groups,
  };
}

/** Whether an estimator of some role needs this. */
function needsEstimate(config: Config, custom: CustomEstimators, need: EstimatorSpec["needs"]): boolean {
  const { estimator, byRole = {} } = advantageOptions(config, custom);
  return [estimator, ...Object.values(byRole)].some((name) => estimatorNamed(name, custom).needs === need);
}

// Update: losses, optimizer, KL terms, critic.

function updateOptions(
  config: Config,
  { estimators, losses }: Pick<Experiment<unknown>, "estimators" | "losses">,
  { engine }: Capabilities,
  totalSteps: number,
): UpdateOptions {
  const { training, data, distillation } = config;
  const { algorithm, critic, trainer } = config.rllm;
  const teacher = teacherTerms(config);
  return {
    loss: policyLossOptions(config, losses),
    kl: klOptions(config),
    prepare: {
      engine,
      advantages: advantageOptions(config, estimators),
      lambda: algorithm.lam,
      correction: correctionOptions(config),
      bypass: algorithm.rollout_correction.bypass_mode === true,
      severalSteps: training.num_minibatches * training.ppo_epochs > 1,
      teacher: teacher.advantages,
      comparesLikely: distillation.enabled && comparesLikely(config),
    },
    epochs: training.ppo_epochs,
    minibatches: training.num_minibatches,
    seed: trainer.seed,
    adam: adamOptions(config, totalSteps),
    critic: {
      loss: {
        aggMode: algorithm.loss_agg_mode ?? "token-mean",
        lossScale: algorithm.loss_scale_factor ?? data.max_response_length,
        clip: critic.value_clip,
        coefficient: critic.value_coef,
      },
      adam: adamOptions(config, totalSteps, critic.learning_rate),
      warmupSteps: critic.warmup_steps,
    },
    teacher: teacher.loss,
  };
}

/** @param base the highest learning rate */
function adamOptions(
  { training, rllm: { algorithm } }: Config,
  totalSteps: number,
  base = training.learning_rate,
): AdamOptions {
  const { lr_schedule: schedule, warmup_steps_ratio: warmupRatio } = training;
  const { warmup_steps: warmupSteps, min_lr_ratio: minRatio } = algorithm;
  const { beta1, beta2, eps, weight_decay: weightDecay, max_grad_norm: maxGradNorm } = training;
  const rate = { schedule, warmupSteps, warmupRatio, base, minRatio };
  return { rate, totalSteps, beta1, beta2, eps, weightDecay, maxGradNorm };
}

export type CustomLosses = Readonly<Record<string, CustomLoss>>;

/** @param custom the experiment's own losses */
export function policyLossOptions(
  { rllm: { algorithm }, data }: Config,
  custom: CustomLosses = {},
): UpdateOptions["loss"] {
  const { lossByRole } = splitEstimatorMap(algorithm.estimator_map);
  const byRole = Object.entries({ ...lossByRole, ...algorithm.loss_fn_map });
  return {
    lossFn: lossNamed(algorithm.loss_fn ?? "ppo", custom),
    lossFnByRole: Object.fromEntries(byRole.map(([role, name]) => [role, lossNamed(name, custom)])),
    epsClip: algorithm.eps_clip ?? epsClip,
    epsClipHigh: algorithm.eps_clip_high,
    aggMode: algorithm.loss_agg_mode,
    lossScale: algorithm.loss_scale_factor ?? data.max_response_length,
    entropyCoeff: algorithm.entropy_coeff,
    // 0 and 1 both train all tokens.
    highEntropyRatio: algorithm.high_entropy_token_ratio || 1,
    constants: { ...algorithm.policy_loss, clip_ratio_c: algorithm.clip_ratio_c },
  };
}

/** The rules about settings have refused names that do not exist. */
const lossNamed = (name: string, custom: CustomLosses): PolicyLossName | CustomLoss =>
  ownValue(custom, name) ?? lossByName(name)!;

function correctionOptions({ rllm: { algorithm } }: Config): CorrectionOptions {
  const { tis_mode, tis_cap, tis_normalize, rs_mode, rs_threshold } = algorithm.rollout_correction;
  return {
    weights: tis_mode === null ? undefined : { level: tis_mode, cap: tis_cap, normalize: tis_normalize },
    rules: rs_mode === null || rs_mode.length === 0 ? [] : rejectionRules(rs_mode, rs_threshold ?? []),
  };
}

export function klOptions({ rllm: { algorithm } }: Config): KlOptions | undefined {
  const { kl_beta: weight, kl_estimator: estimator, kl_target: target, kl_horizon: horizon } = algorithm;
  if (weight === null || weight === 0) return undefined;
  return { weight, estimator, target, horizon, in: algorithm.use_kl_in_reward ? "reward" : "loss" };
}

// Models beside the policy.

/** The policy's own adapter and a value head. A critic has no output layer to adapt. */
function criticSpec(config: Config): LearnerSpec {
  const adapter = adapterSpec(config);
  const other = otherModel(config, config.rllm.critic.model);
  if (adapter.kind !== "lora") return { adapter, head: "value", ...other };
  const targets = adapter.targets.filter((target) => target !== "unembed");
  return { adapter: { ...adapter, targets }, head: "value", ...other };
}

/** The frozen model that the KL compares with: the base model, or the weights that the run starts from. */
function referenceSpec(config: Config): LearnerSpec {
  const { reference_model } = config.rllm.algorithm;
  if (config.training.start_from !== null && reference_model === null) return { adapter: adapterSpec(config) };
  return { adapter: { kind: "none" }, ...otherModel(config, reference_model) };
}

function otherModel({ model }: Config, name: string | null): Pick<LearnerSpec, "model"> {
  return name === null || name === model.name ? {} : { model: name };
}

type Parts = Pick<RunOptions, "teaching" | "rewardModels"> & {
  models: Pick<RunOptions["models"], "reference" | "critic">;
};

/** The memory of these models is computed before anything is loaded. What a configuration names without its experiment, which may define losses and estimators of its own. */
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
