/** The configuration, compiled once into the options of each stage. `src/support` has checked it. */

import { needsReference } from "../../algorithms/policy-loss/loss-choice.ts";
import { adapterSpec } from "../../backends/adapter-spec.ts";
import type { Capabilities, PolicySpec } from "../../backends/engine.ts";
import { learnsFromRewards } from "../../backends/teachers/teachers-in.ts";
import type { ComposedConfig } from "../../config/compose.ts";
import type { Config } from "../../config/schema.ts";
import { tasksPerDraw, tasksPerStep } from "../../data/sampler.ts";
import { parseOnAgentError, type RunRolloutsOptions } from "../../rollout/run-rollouts.ts";
import { maskedReasons } from "../../trajectories/group-trajectories.ts";
import { resumeOptions } from "../checkpoints/restore.ts";
import type { Experiment } from "../experiment.ts";
import type { GatheringOptions } from "../rollouts/group-episodes.ts";
import type { Attempts, RolloutOptions } from "../rollouts/rollouts.ts";
import { asyncOptions, asyncWarnings } from "./async-options.ts";
import { creditOptions, needsEstimate } from "./credit-options.ts";
import { teachingOptions } from "./distillation-options.ts";
import { planOf } from "./plan.ts";
import { rewardModelOptions } from "./reward-model-options.ts";
import { criticSpec, referenceSpec, updateOptions } from "./update-options.ts";

export type Recipe = ReturnType<typeof compileRecipe>;

export function compileRecipe(
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
