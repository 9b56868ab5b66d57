/**
 * What the rules say of a composed configuration: the effect of each setting, the check before a run starts, and `--explain`. The first
 * unmet rule of a key is the reason that is given.
 */
import { isDeepStrictEqual } from "node:util";
import { backendRules, capabilitiesOf, reasonUnused } from "../backends/backends.ts";
import type { Capabilities } from "../backends/engine.ts";
import type { Outcome, Rule, ScriptFacts, Situation } from "../backends/rule.ts";
import { UserError } from "../base/errors.ts";
import { maskedLogin } from "../base/text.ts";
import { ownValue } from "../base/values.ts";
import { didYouMean, showValue } from "../config/check.ts";
import { type ComposedConfig, composeConfig } from "../config/compose.ts";
import { type Backend, backends } from "../config/schema/backends.ts";
import {
  type Config,
  configKeys,
  configSections,
  describeKey,
  type KeyDescription,
  openSectionOf,
  openSections,
} from "../config/schema.ts";
import { shownValue } from "../config/secrets.ts";
import { sharedKeys } from "../config/synonyms.ts";
import { type ConfigWarning, layerOf, type Origin, originText, valueAt } from "../config/tree.ts";
import { verlTypes } from "../config/verl-keys.ts";
import { conditions, distillationRules, sources } from "./conditions.ts";
import { abilities, contradictions, metadataRules, statedConditions } from "./contradictions.ts";

/** Rules that hold on every backend. */
export const sharedRules: readonly Rule[] = [
  ...metadataRules,
  ...abilities,
  ...contradictions,
  ...sources,
  ...distillationRules,
  ...statedConditions,
  ...conditions,
];

const rulesOf = (config: Config): readonly Rule[] => [...backendRules(config), ...sharedRules];

// The effect of a setting: whether it acts, has no effect, or is refused, and why.

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
function shippedConfig(backend: Backend): Config {
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

// Checks before start that every setting takes effect, so none is ignored silently.

export interface CheckOptions extends Facts {
  /** Nothing is going to run, so refused settings are only reported. */
  dryRun?: boolean;
  /** Whether the command trains; otherwise settings without an effect are not worth a warning. Default true. */
  trains?: boolean;
}

export interface CheckedSettings {
  /** The configuration, with the defaults of settings that the run continues without. */
  composed: ComposedConfig;
  /** To print. */
  warnings: ConfigWarning[];
  /** Whether a run stops because of its settings. */
  isRefused: boolean;
}

/**
 * Checks the settings of a command before anything is opened.
 *
 * @throws UserError naming every refused setting that the user set, its origin and what to do
 */
export function checkSettings(composed: ComposedConfig, options: CheckOptions = {}): CheckedSettings {
  const { dryRun = false } = options;
  const found = unsupportedSettings(composed, options);
  const refused = found.filter((one) => one.isRefused);
  if (refused.length > 0 && !dryRun) throw refusal(refused);
  if (!dryRun) requireValues(composed);
  return {
    composed: withoutUnsupported(composed, found),
    warnings: [...composed.warnings, ...found.map(toWarning)],
    isRefused: refused.length > 0,
  };
}

/** Replaces the settings that a run continues without by the backend's defaults. */
function withoutUnsupported(composed: ComposedConfig, found: readonly Unsupported[]): ComposedConfig {
  const ignored = found.filter(({ key, effect, isRefused }) => {
    return effect.kind === "unsupported" && !isRefused && configKeys.has(key);
  });
  if (ignored.length === 0) return composed;
  const config = structuredClone(composed.config);
  for (const key of ignored.flatMap(({ key }) => [key, ...otherNamesOf(key)])) {
    const names = key.split(".");
    const section = valueAt(config, names.slice(0, -1).join("."));
    (section as Record<string, unknown>)[names.at(-1)!] = defaultOf(composed, key);
  }
  return { ...composed, config };
}

const defaultOf = ({ config }: ComposedConfig, key: string) => valueAt(shippedConfig(config.rllm.backend), key);

const otherNamesOf = (key: string) => sharedKeys.filter((names) => names.includes(key)).flat();

export interface Unsupported {
  key: string;
  effect: Exclude<Effect, { kind: "acts" }>;
  /** Whether a run stops because of it. */
  isRefused: boolean;
  /** The setting and the reason. */
  message: string;
  /** The origin of the value in words. */
  origin: string;
  /** How a run continues if it is not refused. */
  instead: string;
}

/** The settings that do not take effect, in the schema's order. */
export function unsupportedSettings(composed: ComposedConfig, options: CheckOptions = {}): Unsupported[] {
  const { trains = true } = options;
  const listed = [...configKeys.values()].flatMap((known): Unsupported[] => {
    const { key } = known;
    const origin = composed.origins.get(key) ?? { kind: "default" };
    const isPreset = origin.kind === "preset";
    // A backend's shipped file sets rllm.backend.
    if (!isPreset && !isSet(origin) && key !== "rllm.backend" && !isJudgedAtDefault(composed, key)) return [];
    const effect = effectOf(composed, known, options);
    if (effect.kind === "acts") return [];
    if (effect.kind === "no effect" && (effect.isNeutral || isPreset || !trains)) return [];
    const setting = describe(composed, key, effect);
    return [{ ...setting, instead: `with the default ${showValue(defaultOf(composed, key))}` }];
  });
  return [...listed, ...unsupportedExtras(composed), ...unusedOwn(composed)];
}

const isJudgedAtDefault = ({ config }: ComposedConfig, key: string) =>
  rulesOf(config).some(({ keys, atDefault }) => atDefault === true && keys.includes(key));

/** Whether the user set the key, or set it by a name that only the backend has. Both names of a shared key are judged. */
const isSet = (origin: Origin) =>
  layerOf(origin.kind === "synced" && !configKeys.has(origin.from) ? origin.of : origin) > 0;

/** Unlisted keys in sections that accept further keys. */
function unsupportedExtras(composed: ComposedConfig): Unsupported[] {
  return [...composed.origins].flatMap(([key, origin]) => {
    const { later } = openSections.get(openSectionOf(key) ?? "") ?? {};
    if (typeof later !== "string" || layerOf(origin) === 0) return [];
    return [describe(composed, key, { kind: "unsupported", because: later, isNeutral: false })];
  });
}

/** Settings in the backend's own sections that differ from the shipped ones and that nothing reads. */
function unusedOwn(composed: ComposedConfig): Unsupported[] {
  const { config, origins, unresolved } = composed;
  const found = [...origins].flatMap(([key, origin]) => {
    if (configKeys.has(key) || layerOf(origin) === 0 || origin.kind === "synced") return [];
    const because = reasonUnused(composed, key);
    return because === undefined ? [] : [{ key, because }];
  });
  if (found.length === 0) return [];
  const shipped = composeConfig({ overrides: [`rllm/backend=${config.rllm.backend}`] }).unresolved;
  return found
    .filter(({ key }) => !isDeepStrictEqual(valueAt(unresolved, key), valueAt(shipped, key)))
    .map(({ key, because }) =>
      describe(composed, key, { kind: "unsupported", because: `it has no effect: ${because}`, isNeutral: false }),
    );
}

function describe(composed: ComposedConfig, key: string, effect: Unsupported["effect"]): Unsupported {
  const { tree, config, origins } = composed;
  const origin = origins.get(key) ?? { kind: "default" };
  const set = `${key}=${showValue(valueAt(config, key) ?? valueAt(tree, key))}`;
  // As the user typed it.
  const setting = origin.kind === "flag" ? `${origin.text} (${set})` : set;
  return {
    key,
    effect,
    isRefused: isRefused(composed, origin, effect),
    message: `${setting}${effect.kind === "no effect" ? " has no effect" : ""}: ${reasonText(effect)}`,
    origin: originText(origin),
    instead: "without it",
  };
}

/** Contradictions always stop a run. A preset that the backend does not support is left out, as with on_unsupported=warn. */
function isRefused({ config }: ComposedConfig, origin: Origin, { kind }: Effect): boolean {
  if (kind === "invalid") return true;
  return kind === "unsupported" && origin.kind !== "preset" && config.rllm.on_unsupported === "error";
}

const reasonText = ({ because, hint }: Unsupported["effect"]) => (hint === undefined ? because : `${because}; ${hint}`);

function toWarning({ key, effect, isRefused, message, instead }: Unsupported): ConfigWarning {
  if (effect.kind === "no effect") return { category: "no_effect", paths: [key], text: message };
  const consequence = isRefused ? "a run would stop here" : `continuing ${instead}`;
  return { category: effect.kind, paths: [key], text: `${message}; ${consequence}` };
}

function refusal(refused: readonly Unsupported[]): UserError {
  const lines = refused.map(({ message, origin }) => `${message} (${origin})`);
  const canIgnore = refused.every(({ effect }) => effect.kind === "unsupported");
  return new UserError(
    lines.length > 1 ? `${lines.length} settings cannot be used:\n  ${lines.join("\n  ")}` : lines.join(),
    { hint: canIgnore ? "remove them, or set rllm.on_unsupported=warn to run without them" : "change or remove them" },
  );
}

/** @throws UserError listing every key that takes effect and whose value is still `???`, or was saved without the login of its URL */
export function requireValues(composed: ComposedConfig): void {
  const { missing, origins, config } = composed;
  const isMasked = (value: unknown) => JSON.stringify(value)?.includes(maskedLogin) ?? false;
  const masked = isMasked(config) ? [...configKeys.keys()].find((key) => isMasked(valueAt(config, key))) : undefined;
  if (masked !== undefined) {
    throw new UserError(`the user name and password in ${masked} were not saved with the run`, {
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
      hint: `add ${masked}=... to the command, preferably as '${"${oc.env:NAME}"}', which is saved with the run`,
    });
  }
  // A reference to a missing value is reported once, with that value.
  const isOwn = (key: string) => origins.get(key)?.kind !== "reference" || layerOf(origins.get(key)!) > 0;
  const needed = missing.filter((key) => isOwn(key) && reasonUnused(composed, key) === undefined);
  if (needed.length === 0) return;
  const lines = needed.map((key) => `${key} (${originText(origins.get(key)!)})`);
  throw new UserError(
    `${lines.length === 1 ? "a required value is" : `${lines.length} required values are`} missing:\n  ${lines.join("\n  ")}`,
    {
      hint: `add to the command line: ${needed
        .slice(0, 5)
        .map((key) => `${key}=...`)
        .join(" ")}`,
    },
  );
}

// Explains the keys of a composed configuration: value, origin, meaning and effect.

export interface ExplainedKey {
  key: string;
  value: unknown;
  origin: Origin;
  /** The origin in words, e.g. `"gpu.yaml:3:5"`. */
  originText: string;
  /** Absent for verl's own keys. */
  default?: unknown;
  type: string;
  description: string;
  /** The effect of this value on the chosen backend. */
  effect: string;
  /** How Hone, its reference document and the systems in that document differ on this key. */
  note?: string;
}

/**
 * All keys in the schema's order, then the backend's own; with `only`, that key or section.
 * @throws UserError when `only` is not a key or section
 */
export function explainConfig(composed: ComposedConfig, only?: string, facts: Facts = {}): ExplainedKey[] {
  const natives = [...composed.origins.keys()].filter((path) => !configKeys.has(path));
  const asked = (key: string) => only === undefined || key === only || key.startsWith(`${only}.`);
  const keys = [...configKeys.keys(), ...natives].filter(asked);
  if (only !== undefined && keys.length === 0 && !configSections.has(only)) {
    throw new UserError(`unknown key ${only}${didYouMean(only, { keys: true, sections: true })}`);
  }
  return keys.map((key) => explainKey(composed, key, facts));
}

function explainKey(composed: ComposedConfig, key: string, facts: Facts): ExplainedKey {
  const origin = composed.origins.get(key) ?? { kind: "default" };
  const known = configKeys.get(key);
  const found = { key, origin, originText: originText(origin) };
  if (known !== undefined) {
    const { type, description, default: fallback, about } = known;
    return {
      ...found,
      value: shownValue(valueAt(composed.config, key), composed.masks, key),
      default: fallback,
      type,
      description,
      effect: effectText(composed, origin, effectOf(composed, known, facts)),
      ...(about.note === undefined ? {} : { note: about.note }),
    };
  }
  const { config } = composed;
  const unused = reasonUnused(composed, key);
  const schema = ownValue(verlTypes, key);
  const native = schema && describeKey(key, schema);
  return {
    ...found,
    value: shownValue(valueAt(composed.tree, key), composed.masks, key),
    type: native?.type ?? "anything",
    description: native?.description ?? "Key of the backend's own configuration.",
    effect: unused === undefined ? "passed to the backend unchanged" : `none on ${config.rllm.backend}: ${unused}`,
  };
}

function effectText(composed: ComposedConfig, origin: Origin, effect: Effect): string {
  const { backend } = composed.config.rllm;
  if (effect.kind === "acts") {
    return `takes effect on ${backend}${effect.provided === undefined ? "" : `; it requires ${effect.provided}`}`;
  }
  const reason = reasonText(effect);
  if (effect.kind === "no effect") return `none on ${backend}: ${reason}`;
  return `${isRefused(composed, origin, effect) ? "refused" : "ignored"} on ${backend}: ${reason}`;
}
