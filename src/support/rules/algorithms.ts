/** The estimators and losses that a configuration names, of all roles. */
import { splitEstimatorMap } from "../../algorithms/advantages/estimate-advantages.ts";
import { type EstimatorSpec, estimators } from "../../algorithms/estimators/index.ts";
import type { PolicyLossDefinition } from "../../algorithms/losses/definition.ts";
import { definitionOf, lossByName, policyLosses } from "../../algorithms/losses/policy-losses.ts";
import type { CustomLoss } from "../../algorithms/policy-loss/custom-loss.ts";
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

/** The losses of all roles, as named in the configuration. */
function lossesIn({ rllm: { algorithm } }: Config): string[] {
  const { lossByRole } = splitEstimatorMap(algorithm.estimator_map);
  return [algorithm.loss_fn ?? "ppo", ...Object.values(lossByRole), ...Object.values(algorithm.loss_fn_map)];
}

/** Whether a loss of some role is like this; a user's own loss may use any constant. */
export const hasLoss = (config: Config, matches: (loss: PolicyLossDefinition) => boolean): boolean =>
  lossesIn(config).some((name) => {
    const known = lossByName(name);
    return known === undefined || matches(definitionOf(known));
  });

export const ownLosses = (config: Config, script: ScriptFacts | undefined): CustomLoss[] =>
  lossesIn(config).flatMap((name) => own(script?.losses, name) ?? []);

/** Whether a loss needs the whole batch for a gradient. */
export const hasCoupledLoss = (config: Config, script: ScriptFacts | undefined): boolean =>
  lossesIn(config).some((name) => {
    const known = own(script?.losses, name) === undefined ? lossByName(name) : undefined;
    return known !== undefined && definitionOf(known).mark !== undefined;
  });

const listed = (names: readonly string[], type: "conjunction" | "disjunction") =>
  new Intl.ListFormat("en-GB", { type }).format(names);
const namesOf = <Definition>(all: Readonly<Record<string, Definition>>, matches: (one: Definition) => boolean) =>
  Object.keys(all).filter((name) => matches(all[name]!));

export const clips = ({ ratio }: PolicyLossDefinition) => ratio === "clipped";

/** `"ppo, cispo, gspo, ..."` */
export const clippingLosses = namesOf<PolicyLossDefinition>(policyLosses, clips).join(", ");
/** `"clip_cov and kl_cov"` */
export const coupledLosses = listed(
  namesOf<PolicyLossDefinition>(policyLosses, ({ mark }) => mark !== undefined),
  "conjunction",
);
/** `"grpo, group_norm or ..."` */
export const stdEstimators = listed(
  namesOf<EstimatorSpec>(estimators, ({ readsStd }) => readsStd === true),
  "disjunction",
);
/** `"gae"` */
export const estimatorsThatNeed = (need: NonNullable<EstimatorSpec["needs"]>) =>
  listed(
    namesOf<EstimatorSpec>(estimators, ({ needs }) => needs === need),
    "disjunction",
  );
