/** A rule about settings. Start-up checks, `hone config --explain`, dry runs and the reference pages all read the same rules. */
import { type AdvantageOptions, splitEstimatorMap } from "../algorithms/advantages.ts";
import type { CustomLoss } from "../algorithms/custom-loss.ts";
import { type EstimatorSpec, estimators } from "../algorithms/estimators.ts";
import type { PolicyLossDefinition } from "../algorithms/loss-definition.ts";
import { definitionOf, lossByName, policyLosses } from "../algorithms/policy-losses.ts";
import { ownValue } from "../base/values.ts";
import type { ComposedConfig } from "../config/compose.ts";
import type { Backend } from "../config/schema/backends.ts";
import { type Config, configKeys } from "../config/schema.ts";
import { sharedKeys } from "../config/synonyms.ts";
import { valueAt } from "../config/tree.ts";
import type { Capabilities } from "./engine.ts";

/**
 * `invalid`: the settings contradict each other, on every backend and machine. `unsupported`: this engine or machine
 * cannot do it. `no effect`: nothing reads the setting, because of another one.
 */
export type Outcome = "invalid" | "unsupported" | "no effect";

export interface Rule {
  outcome: Outcome;
  /** The settings that the rule is about, at values other than their defaults. */
  keys: readonly string[];
  /** The condition, after "it requires". Absent: `because` says why, or only the backends that have it are named. */
  requires?: string;
  /** Why this value cannot be used. */
  because?(situation: Situation, value: unknown): string;
  /** Which values or engines the rule is about, if not all: "with gae". */
  when?: string;
  /**
   * Undefined: known only when the run begins.
   *
   * @param value of the key; undefined asks whether any value is possible
   */
  isMet(situation: Situation, value: unknown): boolean | undefined;
  /** What to set instead. */
  hint?: string;
  /** Whether it depends only on the backend and its capabilities, so that the backends that have them can be named. */
  byEngine?: true;
  /** Judged also if the setting has its default: a contradiction with the script, or among defaults. */
  atDefault?: true;
}

/** What rules judge. */
export interface Situation extends Pick<ComposedConfig, "config" | "origins"> {
  backend: Backend;
  capabilities: Capabilities;
  script: ScriptFacts | undefined;
  /** Names of estimators and losses of a script that is not loaded. */
  registered: readonly string[];
}

/** What is known of the experiment once its script is loaded. */
export interface ScriptFacts {
  estimators: NonNullable<AdvantageOptions["custom"]>;
  losses: Readonly<Record<string, CustomLoss>>;
  /** What it learns from; absent: rollouts. */
  source?: Config["training"]["source"];
  /** Whether it has a prompt for teachers, with which a model can teach itself. */
  teachesItself?: boolean;
  /** Tasks of the training dataset. */
  tasks: number;
  /** The name of the validation dataset, if there is one. */
  validation: string | undefined;
}

// Short ways to write rules, and the lists of keys that they are about.

/** Settings that are unsupported on an engine without some ability. */
export function ability(
  keys: readonly string[],
  requires: string,
  isMet: (capabilities: Capabilities, value: unknown, situation: Situation) => boolean,
): Rule {
  return {
    outcome: "unsupported",
    keys,
    requires,
    isMet: (situation, value) => isMet(situation.capabilities, value, situation),
    byEngine: true,
  };
}

/** Settings that have no effect unless other settings have some value. */
export function needs(
  requires: string,
  keys: readonly string[],
  isMet: (config: Config, script: ScriptFacts | undefined) => boolean | undefined,
): Rule {
  return { outcome: "no effect", keys, requires, isMet: ({ config, script }) => isMet(config, script) };
}

/** @param condition as in the schema's `when` */
export function needsValue(condition: string, keys: readonly string[]): Rule {
  const [key = "", value] = condition.split(/=| (?=above 0$)/);
  return needs(condition, keys, (config) => {
    const found = valueAt(config, key);
    if (value === "above 0") return Number(found) > 0;
    if (value !== undefined) return String(found) === value;
    return found !== null && !(Array.isArray(found) && found.length === 0);
  });
}

/** Settings that contradict others. */
export function contradicts(
  keys: readonly string[],
  requires: string,
  isMet: (config: Config, script: ScriptFacts | undefined) => boolean | undefined,
  hint?: string,
): Rule {
  return { ...needs(requires, keys, isMet), outcome: "invalid", ...(hint === undefined ? {} : { hint }) };
}

export function under(section: string, ...names: string[]): string[] {
  return names.map((name) => `${section}.${name}`);
}

/** All keys of a section, without those named. */
export function below(section: string, ...except: string[]): string[] {
  return [...configKeys.keys()].filter(
    (key) => key.startsWith(`${section}.`) && !under(section, ...except).includes(key),
  );
}

/** Keys of `rllm` with their other names. */
export function withOlderNames(keys: readonly string[]): string[] {
  return keys.flatMap((key) => [key, ...sharedKeys.filter(([, rllm]) => rllm === key).map(([native]) => native)]);
}

// The estimators and losses that a configuration names, of all roles.

export const builtInEstimator = (name: string): EstimatorSpec | undefined => ownValue<EstimatorSpec>(estimators, name);

/** What an estimator needs. The script's own ones get rewards only, also those that replace a built-in one. */
export const needOf = (name: string, script: ScriptFacts | undefined): EstimatorSpec["needs"] =>
  ownValue(script?.estimators, name) === undefined ? builtInEstimator(name)?.needs : undefined;

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
  lossesIn(config).flatMap((name) => ownValue(script?.losses, name) ?? []);

/** Whether a loss needs the whole batch for a gradient. */
export const hasCoupledLoss = (config: Config, script: ScriptFacts | undefined): boolean =>
  lossesIn(config).some((name) => {
    const known = ownValue(script?.losses, name) === undefined ? lossByName(name) : undefined;
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
