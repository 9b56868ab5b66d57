/** The estimators and losses that a configuration names, of all roles. */
import { splitEstimatorMap } from "../../algorithms/advantages/estimate-advantages.ts";
import { type EstimatorSpec, estimators } from "../../algorithms/estimators/index.ts";
import { lossAliases, type PolicyLossName, policyLosses } from "../../algorithms/losses/policy-losses.ts";
import type { CustomLoss } from "../../algorithms/policy-loss/custom-loss.ts";
import { definitionOf } from "../../algorithms/policy-loss/loss-choice.ts";
import type { ScriptFacts } from "../../backends/rule.ts";
import type { Config } from "../../config/schema.ts";
import { own } from "../../own.ts";

export const builtInEstimator = (name: string): EstimatorSpec | undefined => own<EstimatorSpec>(estimators, name);

/** What an estimator needs. The script's own ones get rewards only, also those that replace a built-in one. */
export const needOf = (name: string, script: ScriptFacts | undefined): EstimatorSpec["needs"] =>
  own(script?.estimators, name) === undefined ? builtInEstimator(name)?.needs : undefined;

/** The estimators in a value of `adv_estimator` or `estimator_map`. */
export function estimatorsIn(value: unknown): string[] {
  if (value === undefined || typeof value === "string") return value === undefined ? [] : [value];
  return Object.values(splitEstimatorMap(value as Config["rllm"]["algorithm"]["estimator_map"]).byRole);
}

export const hasEstimator = ({ rllm: { algorithm } }: Config, matches: (name: string) => boolean): boolean =>
  !algorithm.use_precomputed_advantage &&
  [algorithm.adv_estimator, ...estimatorsIn(algorithm.estimator_map)].some(matches);

/** Whether an estimator of some role reads a critic's values. */
export const hasCritic = (config: Config, script?: ScriptFacts): boolean =>
  hasEstimator(config, (name) => needOf(name, script) === "values");

/** The losses of all roles under Hone's own names. */
function lossNames({ rllm: { algorithm } }: Config): string[] {
  const { lossByRole } = splitEstimatorMap(algorithm.estimator_map);
  const names = [algorithm.loss_fn ?? "ppo", ...Object.values(lossByRole), ...Object.values(algorithm.loss_fn_map)];
  return names.map((name) => own<string>(lossAliases, name) ?? name);
}

/** A user's own loss may use any constant. */
export const hasLoss = (config: Config, names: readonly string[]): boolean =>
  lossNames(config).some((name) => names.includes(name) || !Object.hasOwn(policyLosses, name));

export const ownLosses = (config: Config, script: ScriptFacts | undefined): CustomLoss[] =>
  lossNames(config).flatMap((name) => own(script?.losses, name) ?? []);

/** Whether a loss needs the whole batch for a gradient. */
export const hasCoupledLoss = (config: Config, script: ScriptFacts | undefined): boolean =>
  lossNames(config).some(
    (name) =>
      own(script?.losses, name) === undefined &&
      Object.hasOwn(policyLosses, name) &&
      definitionOf(name as PolicyLossName).mark !== undefined,
  );
