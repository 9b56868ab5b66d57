/** The configuration's keys as the options of advantages and rewards. */
import {
  type AdvantageOptions,
  estimatorNamed,
  splitEstimatorMap,
} from "../../algorithms/advantages/estimate-advantages.ts";
import type { TokenAdvantageOptions } from "../../algorithms/advantages/token-advantages.ts";
import { estimatorPresets } from "../../algorithms/estimators/estimator.ts";
import type { EstimatorSpec } from "../../algorithms/estimators/index.ts";
import { learnsFromRewards } from "../../backends/teachers/teachers-in.ts";
import type { Config } from "../../config/schema.ts";
import type { CreditOptions } from "../update/assign-credit.ts";

/** The experiment's own estimators. */
type CustomEstimators = AdvantageOptions["custom"];

export function advantageOptions(config: Config, custom: CustomEstimators): TokenAdvantageOptions {
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

export function creditOptions(config: Config, custom: CustomEstimators): CreditOptions {
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
export function needsEstimate(config: Config, custom: CustomEstimators, need: EstimatorSpec["needs"]): boolean {
  const { estimator, byRole = {} } = advantageOptions(config, custom);
  return [estimator, ...Object.values(byRole)].some((name) => estimatorNamed(name, custom).needs === need);
}
