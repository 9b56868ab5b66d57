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
import { nearest } from "../nearest.ts";
import { own } from "../own.ts";
import { rulesOf, sharedRules } from "./rules/index.ts";

/** Facts that the configuration does not contain. */
export interface Facts {
  /** The abilities of the engine; default: those of the configured backend. */
  capabilities?: Capabilities | undefined;
  /** Undefined: the experiment's script is not known. */
  script?: ScriptFacts | undefined;
  /** Further names that a script registers, by the key that accepts them. */
  registered?: Readonly<Record<string, readonly string[]>>;
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
    capabilities: facts.capabilities ?? capabilitiesOf(config),
    script: facts.script,
  };
  if (isNeutral(composed, known, value)) {
    const found = reasonAgainst(situation, known, undefined, facts);
    if (found.kind !== "acts") return { kind: "no effect", because: found.because, isNeutral: true };
    return about.neutral === undefined
      ? found
      : { kind: "no effect", because: "this value changes nothing", isNeutral: true };
  }
  return reasonAgainst(situation, known, value, facts);
}

/** @param value undefined for a neutral value: why no value of the key would take effect */
function reasonAgainst(situation: Situation, known: KeyDescription, value: unknown, facts: Facts): Effect {
  const { config } = situation;
  const { key, about } = known;
  const against = (kind: Outcome, because: string, hint?: string): Effect => ({
    kind,
    because,
    hint,
    isNeutral: false,
  });
  if (about.backends !== undefined && !about.backends.includes(config.rllm.backend)) {
    return against("unsupported", onlyOn(about.backends), about.instead && `use ${about.instead}`);
  }
  if (typeof about.later === "string") return against("unsupported", about.later);
  let provided: string | undefined;
  for (const rule of rulesOf(config)) {
    if (!rule.keys.includes(key) || (value === undefined && rule.outcome === "invalid")) continue;
    const isMet = rule.isMet(situation, value);
    if (isMet === false)
      return against(rule.outcome, `${requirementOf(rule)}${supportersOf(rule, situation, value)}`, rule.hint);
    if (isMet === undefined) provided ??= rule.requires;
  }
  const refused = refusedName(known, value, facts);
  if (refused !== undefined) return against(...refused);
  return provided === undefined ? { kind: "acts" } : { kind: "acts", provided };
}

/** `"it requires ..."`, or `"with gae, it requires ..."`. */
const requirementOf = ({ when, requires }: Rule) => `${when === undefined ? "" : `${when}, `}it requires ${requires}`;

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

/** Why a named value, such as an estimator, cannot be used. */
function refusedName(
  { key, about: { later, options } }: KeyDescription,
  value: unknown,
  { script, registered }: Facts,
): [Outcome, string] | undefined {
  const names = (Array.isArray(value) ? value : [value]).filter((one) => typeof one === "string");
  const because = typeof later === "object" ? names.map((name) => own(later, name)).find(Boolean) : undefined;
  if (because !== undefined) return ["unsupported", because];
  if (options === undefined) return undefined;
  const known = [...options, ...ownNames(key, script), ...(registered?.[key] ?? [])];
  const unknown = names.find((name) => !known.includes(name));
  if (unknown === undefined) return undefined;
  const near = nearest(unknown, known, 2);
  const help = near.length > 0 ? `; did you mean ${near.join(" or ")}?` : `; built in: ${options.join(", ")}`;
  return ["invalid", `the name is neither built in nor registered${help}`];
}

/** The names that the script registers for a key. */
function ownNames(key: string, script: ScriptFacts | undefined): string[] {
  if (key === "rllm.algorithm.adv_estimator") return Object.keys(script?.estimators ?? {});
  return key === "rllm.algorithm.loss_fn" ? Object.keys(script?.losses ?? {}) : [];
}

function supportersOf(rule: Rule, situation: Situation, value: unknown): string {
  if (!rule.byEngine) return "";
  const { config, capabilities } = situation;
  const able = backends.filter((backend) =>
    rule.isMet({ ...situation, capabilities: capabilitiesOf(config, backend) }, value),
  );
  return able.length === 0 ? `, which the ${capabilities.engine} does not support` : `; ${onlyOn(able)}`;
}

/** The backends that support a key, regardless of other settings. */
export function supportingBackends(
  { key, about }: KeyDescription,
  { config, origins }: ComposedConfig,
): readonly Backend[] {
  if (typeof about.later === "string") return [];
  const rules = sharedRules.filter(({ keys, byEngine }) => byEngine && keys.includes(key));
  return backends.filter((backend) => {
    const situation = { config, origins, capabilities: capabilitiesOf(config, backend), script: undefined };
    return (about.backends?.includes(backend) ?? true) && rules.every(({ isMet }) => isMet(situation, undefined));
  });
}

const onlyOn = (backends: readonly string[]) =>
  `only the ${backends.join(" and ")} ${backends.length > 1 ? "backends support" : "backend supports"} it`;
