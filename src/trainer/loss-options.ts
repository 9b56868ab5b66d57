/** The configuration's keys as the options of the policy loss and of off-policy correction. */
import { splitEstimatorMap } from "../algorithms/advantages.ts";
import type { CustomLoss } from "../algorithms/custom-loss.ts";
import type { KlControllerOptions } from "../algorithms/kl-controller.ts";
import type { ImportanceOptions } from "../algorithms/off-policy/importance-weights.ts";
import type { PolicyLossOptions } from "../algorithms/policy-loss.ts";
import { type PolicyLossName, policyLosses } from "../algorithms/policy-losses.ts";
import { type RejectionRule, rejectionRules } from "../algorithms/rejection.ts";
import type { Capabilities, Sampler } from "../backends/engine.ts";
import { changesDistribution } from "../backends/sampling-params.ts";
import type { Config } from "../config/schema.ts";
import { UserError } from "../errors.ts";
import { nearest } from "../nearest.ts";

export type CustomLosses = Readonly<Record<string, CustomLoss>>;

/** Other systems' names of the same losses. */
const aliases: Readonly<Record<string, PolicyLossName>> = { vanilla: "ppo", geo_mean: "gmpo", reinforce: "gpg" };

/**
 * @param custom the experiment's own losses
 * @param klWeight where an adaptive KL weight stands; absent: `kl_beta`
 * @throws UserError when a loss is unknown
 */
export function policyLossOptions(
  { rllm: { algorithm }, data }: Config,
  custom: CustomLosses = {},
  klWeight = algorithm.kl_beta ?? 0,
): PolicyLossOptions {
  const { lossByRole } = splitEstimatorMap(algorithm.estimator_map);
  const byRole = Object.entries({ ...lossByRole, ...algorithm.loss_fn_map });
  const own = algorithm.policy_loss;
  return {
    lossFn: lossNamed(algorithm.loss_fn ?? "ppo", custom),
    lossFnByRole: Object.fromEntries(byRole.map(([role, name]) => [role, lossNamed(name, custom)])),
    epsClip: algorithm.eps_clip ?? 0.2,
    epsClipHigh: algorithm.eps_clip_high,
    dualClip: algorithm.clip_ratio_c,
    aggMode: algorithm.loss_agg_mode,
    lossScale: algorithm.loss_scale_factor ?? data.max_response_length,
    klBeta: algorithm.use_kl_in_reward ? 0 : klWeight,
    klEstimator: algorithm.kl_estimator,
    entropyCoeff: algorithm.entropy_coeff,
    // 0 and 1 both train all tokens.
    highEntropyRatio: algorithm.high_entropy_token_ratio || 1,
    gspoGradient: own.gspo_gradient,
    cispoLow: own.cispo_low,
    cispoHigh: own.cispo_high,
    constants: {
      droBeta: own.dro_beta,
      tauPositive: own.tau_pos,
      tauNegative: own.tau_neg,
      cpgdDrift: own.cpgd_drift_coef,
      clipCovRatio: own.clip_cov_ratio,
      clipCovLow: own.clip_cov_lb,
      clipCovHigh: own.clip_cov_ub,
      klCovRatio: own.kl_cov_ratio,
      klCovCoef: own.ppo_kl_coef,
    },
  };
}

function lossNamed(name: string, custom: CustomLosses): PolicyLossName | CustomLoss {
  if (Object.hasOwn(custom, name)) return custom[name]!;
  const known = Object.hasOwn(aliases, name) ? aliases[name]! : name;
  if (Object.hasOwn(policyLosses, known)) return known as PolicyLossName;
  const names = [...Object.keys(policyLosses), ...Object.keys(aliases), ...Object.keys(custom)];
  const near = nearest(name, names, 2);
  throw new UserError(`there is no policy loss "${name}"`, {
    hint: near.length > 0 ? `Did you mean ${near.join(" or ")}?` : `There are ${names.join(", ")}.`,
  });
}

export interface CorrectionOptions {
  weights: ImportanceOptions | undefined;
  rules: readonly RejectionRule[];
}

/** @throws UserError for rules that do not exist, and for weights that could only be 1 */
export function correctionOptions({ rllm: { algorithm } }: Config): CorrectionOptions {
  const { bypass_mode, tis_mode, tis_cap, tis_normalize, rs_mode, rs_threshold } = algorithm.rollout_correction;
  if (bypass_mode === true && tis_mode !== null) {
    throw new UserError("rllm.algorithm.rollout_correction.tis_mode does nothing with bypass_mode=true", {
      hint: "The ratio then already is that of trainer and sampler: leave one of the two out.",
    });
  }
  return {
    weights: tis_mode === null ? undefined : { level: tis_mode, cap: tis_cap, normalize: tis_normalize },
    rules: rs_mode === null || rs_mode.length === 0 ? [] : rejectionRules(rs_mode, rs_threshold ?? []),
  };
}

/** Off-policy correction compares two models; a distribution that temperature and filters have changed is none. */
export function correctsProcessed(engine: string): UserError {
  return new UserError(
    `rllm.algorithm.rollout_correction compares with the sampler's log-probabilities, and those of the engine "${engine}" are of what temperature, top_p and top_k have made of the model`,
    { hint: "Sample with temperature=1, top_p=1 and top_k=-1, or leave tis_mode and rs_mode out." },
  );
}

/**
 * What the sampler's log-probabilities are good for, where sampling changes the model's distribution.
 *
 * @returns what the user should know, a sentence each
 * @throws UserError for correction that would rely on them
 */
export function checkSamplerLogprobs(config: Config, engine: string, logprobs: Sampler["logprobs"]): string[] {
  const { temperature, top_p: topP, top_k: topK, min_p: minP } = config.rllm.rollout.train;
  if (logprobs === "raw" || !changesDistribution({ temperature, topP, topK, minP })) return [];
  const { weights, rules } = correctionOptions(config);
  if (weights !== undefined || rules.length > 0) throw correctsProcessed(engine);
  if (!config.rllm.algorithm.rollout_correction.bypass_mode) return [];
  return [
    `rllm.algorithm.rollout_correction.bypass_mode has no effect: the engine "${engine}" gives log-probabilities of what temperature, top_p and top_k have made of the model, so ratios start from the trainer's own`,
  ];
}

/** @throws UserError when there is a target and no KL to steer towards it */
export function klControllerOptions({ rllm: { algorithm } }: Config): KlControllerOptions {
  const { kl_beta, kl_target: target, kl_horizon: horizon } = algorithm;
  if (target !== null && !kl_beta) {
    throw new UserError("rllm.algorithm.kl_target has no KL to adapt: kl_beta is 0", {
      hint: "rllm.algorithm.kl_beta=0.001 is where it may start.",
    });
  }
  return { initial: kl_beta ?? 0, target, horizon };
}

/** @throws UserError when the loss needs an output that the engine does not give */
export function requireOutputs(
  capabilities: Capabilities,
  { rllm: { algorithm } }: Config,
  readsEntropy: boolean,
): void {
  if (!readsEntropy || capabilities.outputs.includes("entropy")) return;
  const key =
    algorithm.entropy_coeff !== 0
      ? "rllm.algorithm.entropy_coeff"
      : algorithm.high_entropy_token_ratio
        ? "rllm.algorithm.high_entropy_token_ratio"
        : "rllm.algorithm.loss_fn";
  throw new UserError(`${key} needs entropies, which the engine "${capabilities.engine}" does not give`, {
    hint: "The local engine gives them: rllm/backend=local.",
  });
}
