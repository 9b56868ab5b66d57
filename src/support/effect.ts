/** The effect of a setting: whether it acts, has no effect, or is refused, and why. */
import { isDeepStrictEqual } from "node:util";
import type { Capabilities } from "../backends/engine.ts";
import { capabilitiesOf } from "../backends/registry/open-engine.ts";
import type { Outcome, Rule, ScriptFacts, Situation } from "../backends/rule.ts";
import { type ComposedConfig, composeConfig } from "../config/compose.ts";
import type { KeyDescription } from "../config/describe.ts";
import { type Backend, backends } from "../config/schema/about.ts";
import type { Config } from "../config/schema.ts";
import { valueAt } from "../config/tree/value-at.ts";
import { rulesOf, sharedRules } from "./rules/index.ts";

/** Facts that the configuration does not contain. */
export interface Facts {
  /** The abilities of the engine; default: those of the configured backend. */
  capabilities?: Capabilities | undefined;
  /** Undefined: the experiment's script is not known. */
  script?: ScriptFacts | undefined;
  /** Names of estimators and losses of a script that is not loaded. */
  registered?: readonly string[];
}

export type Effect =
  /** `provided`: what it requires, if that is known only when the run begins. */
  | { kind: "acts"; provided?: string }
  /** `isNeutral`: the value is the default or one that changes nothing, so there is nothing to warn about. */
  | { kind: Outcome; because: string; hint?: string | undefined; isNeutral: boolean };

/** The effect of a key's value on the chosen backend. */
export function effectOf(composed: ComposedConfig, known: KeyDescription, facts: Facts = {}): Effect {
  const { about, key } = known;
  const { config, origins } = composed;
  const value = valueAt(config, key);
  const situation: Situation = {
    config,
    origins,
    backend: config.rllm.backend,
    capabilities: facts.capabilities ?? capabilitiesOf(config),
    script: facts.script,
    registered: facts.registered ?? [],
  };
  if (!isNeutral(composed, known, value)) return judge(situation, key, value);
  const contradiction = judge(situation, key, value, ({ atDefault }) => atDefault === true);
  if (contradiction.kind !== "acts") return contradiction;
  // No value of the key would take effect, regardless of contradictions.
  const found = judge(situation, key, undefined, ({ outcome }) => outcome !== "invalid");
  if (found.kind !== "acts") return { kind: "no effect", because: found.because, isNeutral: true };
  return about.neutral === undefined
    ? found
    : { kind: "no effect", because: "this value changes nothing", isNeutral: true };
}

/** The first rule of the key that is not met decides. */
function judge(
  situation: Situation,
  key: string,
  value: unknown,
  isMeant: (rule: Rule) => boolean = () => true,
): Effect {
  let provided: string | undefined;
  for (const rule of rulesOf(situation.config)) {
    if (!rule.keys.includes(key) || !isMeant(rule)) continue;
    const isMet = rule.isMet(situation, value);
    if (isMet === false) {
      return { kind: rule.outcome, because: reasonOf(rule, situation, value), hint: rule.hint, isNeutral: false };
    }
    if (isMet === undefined) provided ??= rule.requires;
  }
  return provided === undefined ? { kind: "acts" } : { kind: "acts", provided };
}

/** `"it requires ..."`, or `"with gae, it requires ..."`, and the backends that support it. */
function reasonOf(rule: Rule, situation: Situation, value: unknown): string {
  const { when, requires, because } = rule;
  if (because !== undefined) return because(situation, value);
  const condition = `${when === undefined ? "" : `${when}, `}it requires ${requires}`;
  if (!rule.byEngine) return condition;
  const able = supportersOf(rule, situation, value);
  if (requires === undefined) return onlyOn(able);
  return able.length === 0
    ? `${condition}, which the ${situation.capabilities.engine} does not support`
    : `${condition}; ${onlyOn(able)}`;
}

const shipped = new Map<Backend, Config>();

/** The configuration of a backend without any setting. */
export function shippedConfig(backend: Backend): Config {
  const found = shipped.get(backend) ?? composeConfig({ overrides: [`rllm/backend=${backend}`] }).config;
  shipped.set(backend, found);
  return found;
}

function isNeutral(
  { config, origins }: ComposedConfig,
  { key, default: fallback, about }: KeyDescription,
  value: unknown,
) {
  if ((about.neutral ?? []).some((one) => isDeepStrictEqual(one, value))) return true;
  if (typeof fallback === "string") {
    return value === fallback.replaceAll(/\$\{([\w.]+)\}/g, (_, other) => String(valueAt(config, other)));
  }
  const origin = origins.get(key);
  const isDefault = origin === undefined || origin.kind === "default";
  return isDeepStrictEqual(value, isDefault ? fallback : valueAt(shippedConfig(config.rllm.backend), key));
}

/** The backends that meet a rule. */
function supportersOf(rule: Rule, situation: Situation, value: unknown): Backend[] {
  return backends.filter((backend) =>
    rule.isMet({ ...situation, backend, capabilities: capabilitiesOf(situation.config, backend) }, value),
  );
}

/** The backends that support a key, regardless of other settings. */
export function supportingBackends({ key }: KeyDescription, { config, origins }: ComposedConfig): readonly Backend[] {
  const situation: Situation = {
    ...{ config, origins, backend: config.rllm.backend, capabilities: capabilitiesOf(config) },
    ...{ script: undefined, registered: [] },
  };
  const rules = sharedRules.filter(({ keys, byEngine }) => byEngine && keys.includes(key));
  return rules.reduce<readonly Backend[]>((able, rule) => {
    const met = supportersOf(rule, situation, undefined);
    return able.filter((backend) => met.includes(backend));
  }, backends);
}

const onlyOn = (backends: readonly string[]) =>
  `only the ${backends.join(" and ")} ${backends.length > 1 ? "backends support" : "backend supports"} it`;
