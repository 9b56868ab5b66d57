/** The effect of a setting: whether it acts, has no effect, or is refused, and why. */
import { isDeepStrictEqual } from "node:util";
import type { Capabilities } from "../backends/engine.ts";
import { capabilitiesOf } from "../backends/registry/open-engine.ts";
import type { ComposedConfig } from "../config/compose.ts";
import type { KeyDescription } from "../config/describe.ts";
import { type Backend, backends } from "../config/schema/about.ts";
import type { Config } from "../config/schema.ts";
import { valueAt } from "../config/tree/value-at.ts";
import { nearest } from "../nearest.ts";
import { own } from "../own.ts";
import { engineNeeds, settingNeeds } from "./needs.ts";

/** Facts that the configuration does not contain. */
export interface Facts {
  /** The abilities of the engine; default: those of the configured backend. */
  capabilities?: Capabilities | undefined;
  /** Names registered by the experiment, by the key that accepts them. */
  registered?: Readonly<Record<string, readonly string[]>>;
}

export type Effect =
  | { kind: "acts" }
  /** `isNeutral`: the value is the default or one that changes nothing, so there is nothing to warn about. */
  | { kind: "none"; because: string; isNeutral: boolean }
  /**
   * `always`: even with `rllm.on_unsupported=warn`, because a run cannot ignore the setting. `isUnread`: the setting
   * would have no effect because of another one.
   */
  | { kind: "refused"; because: string; always: boolean; isUnread: boolean };

/** The effect of a key's value on the chosen backend. */
export function effectOf(composed: ComposedConfig, known: KeyDescription, facts: Facts = {}): Effect {
  const { config } = composed;
  const { about, key } = known;
  const value = valueAt(config, key);
  if (isNeutral(known, value, config)) {
    const because =
      reasonAgainst(composed, known, undefined, facts)?.because ?? (about.neutral && "this value changes nothing");
    return because === undefined ? { kind: "acts" } : { kind: "none", because, isNeutral: true };
  }
  const found = reasonAgainst(composed, known, value, facts);
  if (found === undefined) return { kind: "acts" };
  const { because, severity } = found;
  if (severity === "warn") return { kind: "none", because, isNeutral: false };
  return { kind: "refused", because, always: severity !== "refuse", isUnread: severity === "refuse unread" };
}

interface Reason {
  because: string;
  severity: "warn" | "refuse" | "refuse always" | "refuse unread";
}

/** @param value undefined for a neutral value: why no value of the key would take effect */
function reasonAgainst(
  composed: ComposedConfig,
  known: KeyDescription,
  value: unknown,
  facts: Facts,
): Reason | undefined {
  const { config } = composed;
  const { key, about } = known;
  if (about.backends !== undefined && !about.backends.includes(config.rllm.backend)) {
    return { because: onlyOn(about.backends), severity: "refuse" };
  }
  if (typeof about.later === "string") return { because: about.later, severity: "refuse" };
  const ability = missingAbility(key, value, config, facts.capabilities);
  if (ability !== undefined) return { because: ability, severity: "refuse always" };
  const need = settingNeeds.find(({ keys, isMet }) => keys.includes(key) && !isMet(composed));
  if (need !== undefined) {
    return { because: `it requires ${need.requires}`, severity: need.refused ? "refuse unread" : "warn" };
  }
  return refusedName(known, value, facts);
}

function isNeutral({ default: fallback, about }: KeyDescription, value: unknown, config: Config): boolean {
  const resolved =
    typeof fallback === "string"
      ? fallback.replaceAll(/\$\{([\w.]+)\}/g, (_, key) => String(valueAt(config, key)))
      : fallback;
  return [resolved, ...(about.neutral ?? [])].some((one) => isDeepStrictEqual(value, one));
}

/** Why a named value, such as an estimator, cannot be used. */
function refusedName(
  { key, about: { later, options } }: KeyDescription,
  value: unknown,
  facts: Facts,
): Reason | undefined {
  const names = (Array.isArray(value) ? value : [value]).filter((one) => typeof one === "string");
  const because = typeof later === "object" ? names.map((name) => own(later, name)).find(Boolean) : undefined;
  if (because !== undefined) return { because, severity: "refuse" };
  if (options === undefined) return undefined;
  const known = [...options, ...(facts.registered?.[key] ?? [])];
  const unknown = names.find((name) => !known.includes(name));
  if (unknown === undefined) return undefined;
  const near = nearest(unknown, known, 2);
  const help = near.length > 0 ? `; did you mean ${near.join(" or ")}?` : `; built in: ${options.join(", ")}`;
  return { because: `the name is neither built in nor registered${help}`, severity: "refuse always" };
}

function missingAbility(key: string, value: unknown, config: Config, own?: Capabilities): string | undefined {
  const capabilities = own ?? capabilitiesOf(config);
  const need = engineNeeds.find(({ keys, isMet }) => keys.includes(key) && !isMet(capabilities, value));
  if (need === undefined) return undefined;
  const able = backends.filter((backend) => need.isMet(capabilitiesOf(config, backend), value));
  return `it requires ${need.requires}${able.length === 0 ? `, which the ${capabilities.engine} does not support` : `; ${onlyOn(able)}`}`;
}

/** The backends that support a key, regardless of other settings. */
export function supportingBackends({ key, about }: KeyDescription, config: Config): readonly Backend[] {
  if (typeof about.later === "string") return [];
  return backends.filter((backend) => {
    const missing = missingAbility(key, undefined, config, capabilitiesOf(config, backend));
    return (about.backends?.includes(backend) ?? true) && missing === undefined;
  });
}

const onlyOn = (backends: readonly string[]) =>
  `only the ${backends.join(" and ")} ${backends.length > 1 ? "backends support" : "backend supports"} it`;
