/** The configuration's keys as the options of the policy loss, of its KL term and of off-policy correction. */
import { splitEstimatorMap } from "../../algorithms/advantages/estimate-advantages.ts";
import type { KlOptions } from "../../algorithms/kl/kl-controller.ts";
import { epsClip, lossByName, type PolicyLossName } from "../../algorithms/losses/policy-losses.ts";
import { rejectionRules } from "../../algorithms/off-policy/rejection.ts";
import type { CustomLoss } from "../../algorithms/policy-loss/custom-loss.ts";
import type { Config } from "../../config/schema.ts";
import { own } from "../../own.ts";
import type { CorrectionOptions } from "../update/prepare-batch.ts";
import type { UpdateOptions } from "../update/update-policy.ts";

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
  own(custom, name) ?? lossByName(name)!;

export function correctionOptions({ rllm: { algorithm } }: Config): CorrectionOptions {
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
