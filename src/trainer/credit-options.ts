/** The configuration's keys as the options of filters, advantages and rewards, and what of them does not go together. */
import { type AdvantageOptions, estimatorNamed, splitEstimatorMap } from "../algorithms/advantages.ts";
import { estimatorPresets } from "../algorithms/estimators/estimator.ts";
import type { TokenAdvantageOptions } from "../algorithms/token-advantages.ts";
import type { Capabilities } from "../backends/engine.ts";
import type { Config } from "../config/schema.ts";
import { UserError } from "../errors.ts";
import type { SequenceFilters } from "../trajectories/sequence-filters.ts";

/** The experiment's own estimators. */
export type CustomEstimators = AdvantageOptions["custom"];

export function advantageOptions({ rllm: { algorithm } }: Config, custom: CustomEstimators): TokenAdvantageOptions {
  const { adv_estimator: estimator, estimator_preset, norm_adv_by_std_in_grpo: std, estimator_map } = algorithm;
  const { gamma, advantages_norm: whiten, advantage_clip: clip } = algorithm;
  return {
    ...estimatorPresets[estimator_preset],
    ...{ estimator, std, byRole: splitEstimatorMap(estimator_map).byRole, gamma, whiten, clip },
    ...(custom ? { custom } : {}),
  };
}

/** Whether greedy replies to the same tasks are needed to compare with. */
export function needsGreedyReplies(config: Config, custom: CustomEstimators): boolean {
  return estimatorNames(config).some((name) => estimatorNamed(name, custom).needs === "greedy_baseline");
}

export function sequenceFilters({ rllm, training }: Config): SequenceFilters {
  return {
    maxLength: training.max_length,
    truncated: rllm.mask_truncated_samples,
    overlong: rllm.agent.overlong_filter,
    filterTokenMismatch: rllm.filter_token_mismatch,
  };
}

/** Tasks that a training step is to be made of. */
export function tasksPerStep({ rllm: { async_training }, data }: Config): number {
  return async_training.enable ? async_training.mini_batch_size : data.train_batch_size;
}

/** Tasks of one draw. */
export function tasksPerDraw(config: Config): number {
  const { enable, multiplier } = config.rllm.rejection_sample;
  return Math.floor(tasksPerStep(config) * (enable ? multiplier : 1));
}

/**
 * @throws UserError when an estimator is unknown or needs what the engine does not give, or settings contradict or
 *   would have no effect
 */
export function checkCredit(config: Config, custom: CustomEstimators, { engine, outputs }: Capabilities): void {
  for (const name of estimatorNames(config)) {
    const { needs } = estimatorNamed(name, custom);
    if ((needs !== "values" && needs !== "concentration") || outputs.includes(needs)) continue;
    const given = needs === "values" ? "values of a critic" : "the sum of the squared probabilities at each token";
    throw new UserError(`the advantage estimator ${name} needs ${given}: ${engine} gives none`, {
      hint: "without a critic there are grpo, rloo, reinforce_plus_plus and others",
    });
  }
  const found = [...contradictions(config), ...aboutCritic(config, custom, estimatorNames(config))].find(
    ([, contradicts]) => contradicts,
  );
  if (found) throw new UserError(found[0], { hint: found[2] });
}

/** Of the configuration, for all roles. */
export function estimatorNames({ rllm: { algorithm } }: Config): string[] {
  const { byRole } = splitEstimatorMap(algorithm.estimator_map);
  return [...new Set([algorithm.adv_estimator, ...Object.values(byRole)])];
}

type Contradiction = [what: string, contradicts: boolean, hint: string];

function aboutCritic({ rllm }: Config, custom: CustomEstimators, names: string[]): Contradiction[] {
  const judged = names.filter((name) => estimatorNamed(name, custom).needs === "values");
  const { enable, mode, normalize_by_steps } = rllm.stepwise_advantage;
  const { lam, use_precomputed_advantage } = rllm.algorithm;
  const shares = use_precomputed_advantage || (enable && (mode === "per_step" || normalize_by_steps));
  return [
    [
      `${judged[0]} lays a trajectory's reward on its last token and asks a critic about those before: not with use_precomputed_advantage, per_step or normalize_by_steps`,
      judged.length > 0 && shares,
      "take one of the two out",
    ],
    [
      "rllm.algorithm.lam and rllm.critic.warmup_steps have no effect without a critic",
      judged.length === 0 && (lam !== 1 || rllm.critic.warmup_steps > 0),
      "set rllm.algorithm.adv_estimator=gae, or take them out",
    ],
  ];
}

function contradictions({ rllm }: Config): Contradiction[] {
  const { stepwise_advantage: stepwise, rejection_sample: rejection, algorithm, reward } = rllm;
  const perStep = stepwise.enable && stepwise.mode === "per_step";
  const own = algorithm.use_precomputed_advantage;
  const several = own ? "use_precomputed_advantage" : "stepwise_advantage.mode=per_step";
  const oneFigure = reward.running_norm || reward.clip > 0 || algorithm.gamma < 1;
  const shaped = stepwise.mode === "per_step" || stepwise.normalize_by_steps;
  return [
    [
      "rllm.stepwise_advantage is set but not enabled",
      shaped && !stepwise.enable,
      "set rllm.stepwise_advantage.enable=true",
    ],
    [
      "normalize_by_steps shares a trajectory's advantage among its steps, but with per_step each step has its own",
      perStep && stepwise.normalize_by_steps,
      "take one of the two out of rllm.stepwise_advantage",
    ],
    [
      "use_precomputed_advantage and stepwise_advantage both say where the steps' advantages come from",
      own && stepwise.enable,
      "take one of the two out",
    ],
    [
      `rllm.reward.running_norm, rllm.reward.clip and rllm.algorithm.gamma work on one figure a trajectory, not with ${several}`,
      (perStep || own) && oneFigure,
      "rewards of steps are discounted by rllm.workflow.workflow_args.gamma",
    ],
    [
      "rllm.reward.running_norm_minus_mean has no effect without rllm.reward.running_norm",
      reward.running_norm_minus_mean && !reward.running_norm,
      "set rllm.reward.running_norm=true",
    ],
    [
      `rllm.rejection_sample.multiplier=${rejection.multiplier} has no effect where rejection sampling is off`,
      rejection.multiplier !== 1 && !rejection.enable,
      "set rllm.rejection_sample.enable=true",
    ],
  ];
}
