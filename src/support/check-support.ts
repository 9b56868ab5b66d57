/** Checks before start that every setting takes effect, so none is ignored silently. */

import { isDeepStrictEqual } from "node:util";
import { reasonUnused } from "../backends/registry/open-engine.ts";
import { showValue } from "../config/compose/check.ts";
import { sharedKeys } from "../config/compose/sync/shared-keys.ts";
import { type ComposedConfig, composeConfig } from "../config/compose.ts";
import { configKeys, openSectionOf, openSections } from "../config/describe.ts";
import { layerOf, type Origin, originText } from "../config/tree/origin.ts";
import { valueAt } from "../config/tree/value-at.ts";
import type { ConfigWarning } from "../config/warnings.ts";
import { UserError } from "../errors.ts";
import { maskedLogin } from "../mask-urls.ts";
import { type Effect, effectOf, type Facts, shippedConfig } from "./effect.ts";
import { rulesOf } from "./rules/index.ts";

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
export function isRefused({ config }: ComposedConfig, origin: Origin, { kind }: Effect): boolean {
  if (kind === "invalid") return true;
  return kind === "unsupported" && origin.kind !== "preset" && config.rllm.on_unsupported === "error";
}

export const reasonText = ({ because, hint }: Unsupported["effect"]) =>
  hint === undefined ? because : `${because}; ${hint}`;

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
