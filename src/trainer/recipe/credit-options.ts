/** The configuration's keys as the options of advantages and rewards, and the combinations that are refused. */
import {
  type AdvantageOptions,
  estimatorNamed,
  splitEstimatorMap,
} from "../../algorithms/advantages/estimate-advantages.ts";
import type { TokenAdvantageOptions } from "../../algorithms/advantages/token-advantages.ts";
import { estimatorPresets } from "../../algorithms/estimators/estimator.ts";
import type { EstimatorSpec } from "../../algorithms/estimators/index.ts";
import type { Capabilities } from "../../backends/engine.ts";
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import type { CreditOptions } from "../update/assign-credit.ts";

/** The experiment's own estimators. */
type CustomEstimators = AdvantageOptions["custom"];

export function advantageOptions({ rllm: { algorithm } }: Config, custom: CustomEstimators): TokenAdvantageOptions {
  return {
    ...estimatorPresets[algorithm.estimator_preset],
    estimator: algorithm.adv_estimator,
    std: algorithm.norm_adv_by_std_in_grpo,
    byRole: splitEstimatorMap(algorithm.estimator_map).byRole,
    gamma: algorithm.gamma,
    whiten: algorithm.advantages_norm,
    clip: algorithm.advantage_clip,
    custom: custom ?? {},
  };
}

export function creditOptions(config: Config, custom: CustomEstimators): CreditOptions {
  const { algorithm, reward, rejection_sample, stepwise_advantage: stepwise, workflow } = config.rllm;
  const { enable, buffer_len: buffer, penalty_factor: factor } = reward.overlong;
  return {
    advantages: advantageOptions(config, custom),
    source: algorithm.use_precomputed_advantage
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
export function needsEstimate(config: Config, custom: CustomEstimators, need: EstimatorSpec["needs"]): boolean {
  return estimatorNames(config).some((name) => estimatorNamed(name, custom).needs === need);
}

/** Of all roles. */
function estimatorNames({ rllm: { algorithm } }: Config): string[] {
  const { byRole } = splitEstimatorMap(algorithm.estimator_map);
  return [...new Set([algorithm.adv_estimator, ...Object.values(byRole)])];
}

/**
 * @throws UserError if an estimator is unknown or needs what the engine does not offer, or settings contradict each
 *   other or would have no effect
 */
export function checkCredit(config: Config, custom: CustomEstimators, { engine, outputs }: Capabilities): void {
  const names = estimatorNames(config);
  for (const name of names) {
    const { needs } = estimatorNamed(name, custom);
    if ((needs !== "values" && needs !== "concentration") || outputs.includes(needs)) continue;
    const what = needs === "values" ? "a critic's values" : "the sum of the squared probabilities at each token";
    throw new UserError(`the advantage estimator ${name} needs ${what}, which the engine ${engine} does not compute`, {
      hint: "grpo, rloo, reinforce_plus_plus and others work without a critic",
    });
  }
  const judged = names.find((name) => estimatorNamed(name, custom).needs === "values");
  const found = contradictions(config, judged).find(([, contradicts]) => contradicts);
  if (found) throw new UserError(found[0], { hint: found[2] });
}

/** @param judged an estimator that reads a critic's values */
function contradictions({ rllm }: Config, judged: string | undefined): [string, boolean, hint: string][] {
  const { stepwise_advantage: stepwise, algorithm, reward } = rllm;
  const perStep = stepwise.enable && stepwise.mode === "per_step";
  const precomputed = algorithm.use_precomputed_advantage;
  const shaped = stepwise.mode === "per_step" || stepwise.normalize_by_steps;
  return [
    [
      "normalize_by_steps divides a trajectory's advantage among its steps, but with per_step each step has its own",
      perStep && stepwise.normalize_by_steps,
      "remove one of the two from rllm.stepwise_advantage",
    ],
    [
      "use_precomputed_advantage and stepwise_advantage both define the steps' advantages",
      precomputed && stepwise.enable,
      "remove one of the two",
    ],
    [
      `rllm.reward.running_norm, rllm.reward.clip and rllm.algorithm.gamma need one advantage per trajectory, which ${precomputed ? "use_precomputed_advantage" : "stepwise_advantage.mode=per_step"} does not give`,
      (perStep || precomputed) && (reward.running_norm || reward.clip > 0 || algorithm.gamma < 1),
      "remove them; rllm.workflow.workflow_args.gamma discounts the rewards of steps",
    ],
    [
      `rllm.reward.model gives one reward per trajectory, which ${precomputed ? "use_precomputed_advantage" : "stepwise_advantage.mode=per_step"} does not read`,
      (perStep || precomputed) && reward.model !== null,
      "remove one of the two",
    ],
    [
      `${judged} takes the reward at a trajectory's last token and a critic's values before it, which is not possible with use_precomputed_advantage, per_step or normalize_by_steps`,
      judged !== undefined && (precomputed || (stepwise.enable && shaped)),
      "remove one of the two",
    ],
  ];
}
