/** Checks before start that every setting takes effect, so none is ignored silently. */

import { isDeepStrictEqual } from "node:util";
import { reasonUnused } from "../backends/registry/open-engine.ts";
import { showValue } from "../config/compose/check.ts";
import { type ComposedConfig, composeConfig } from "../config/compose.ts";
import { configKeys, openSectionOf, openSections } from "../config/describe.ts";
import { layerOf, originText } from "../config/tree/origin.ts";
import { valueAt } from "../config/tree/value-at.ts";
import type { ConfigWarning } from "../config/warnings.ts";
import { UserError } from "../errors.ts";
import { maskedLogin } from "../mask-urls.ts";
import { type Effect, effectOf, type Facts } from "./effect.ts";

export interface CheckOptions extends Facts {
  /** Nothing is going to run, so refused settings are only reported. */
  dryRun?: boolean;
  /** Whether the command trains; otherwise settings without an effect are not worth a warning. Default true. */
  trains?: boolean;
}

/**
 * Checks the settings of a command before anything is opened.
 *
 * @returns the warnings to print
 * @throws UserError naming every refused setting that the user set, its origin and what to do
 */
export function checkSettings(composed: ComposedConfig, options: CheckOptions = {}): ConfigWarning[] {
  const { dryRun = false } = options;
  const found = unsupportedSettings(composed, options);
  const refused = found.filter((one) => one.isRefused);
  if (refused.length > 0 && !dryRun) throw refusal(refused);
  if (!dryRun) requireValues(composed);
  return [...composed.warnings, ...found.map(toWarning)];
}

export interface Unsupported {
  key: string;
  effect: Exclude<Effect, { kind: "acts" }>;
  /** Whether a run stops because of it. */
  isRefused: boolean;
  /** The setting, the reason, and what to set instead. */
  message: string;
  /** The origin of the value in words. */
  origin: string;
}

/** The settings that do not take effect, in the schema's order. */
export function unsupportedSettings(composed: ComposedConfig, options: CheckOptions = {}): Unsupported[] {
  const { trains = true } = options;
  const listed = [...configKeys.values()].flatMap((known): Unsupported[] => {
    const { key, about } = known;
    const origin = composed.origins.get(key) ?? { kind: "default" };
    const isPreset = origin.kind === "preset";
    // A backend's shipped file sets rllm.backend.
    if (!isPreset && layerOf(origin) === 0 && key !== "rllm.backend") return [];
    const effect = effectOf(composed, known, options);
    if (effect.kind === "acts") return [];
    if (effect.kind === "none" && (effect.isNeutral || isPreset || !trains)) return [];
    const instead = about.instead === undefined || effect.kind === "none" ? "" : `; use ${about.instead}`;
    return [describe(composed, key, effect, `${effect.because}${instead}`)];
  });
  return [...listed, ...unsupportedExtras(composed), ...unusedOwn(composed)];
}

/** Unlisted keys in sections that accept further keys. */
function unsupportedExtras(composed: ComposedConfig): Unsupported[] {
  return [...composed.origins].flatMap(([key, origin]) => {
    const { later } = openSections.get(openSectionOf(key) ?? "") ?? {};
    if (typeof later !== "string" || layerOf(origin) === 0) return [];
    return [describe(composed, key, { kind: "refused", because: later, always: false, isUnread: false }, later)];
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
      describe(composed, key, { kind: "refused", because, always: false, isUnread: true }, because),
    );
}

function describe(
  { tree, config, origins }: ComposedConfig,
  key: string,
  effect: Unsupported["effect"],
  reason: string,
): Unsupported {
  const origin = origins.get(key) ?? { kind: "default" };
  const setting = `${key}=${showValue(valueAt(config, key) ?? valueAt(tree, key))}`;
  const isRefused =
    effect.kind === "refused" && origin.kind !== "preset" && (effect.always || config.rllm.on_unsupported === "error");
  const isUnread = effect.kind === "none" || effect.isUnread;
  return {
    key,
    effect,
    isRefused,
    message: `${setting}${isUnread ? " has no effect" : ""}: ${reason}`,
    origin: originText(origin),
  };
}

function toWarning({ key, effect, isRefused, message }: Unsupported): ConfigWarning {
  if (effect.kind === "none") return { category: "no_effect", paths: [key], text: message };
  const consequence = isRefused ? "a run would stop here" : "continuing without it";
  return { category: "unsupported", paths: [key], text: `${message}; ${consequence}` };
}

function refusal(refused: readonly Unsupported[]): UserError {
  const lines = refused.map(({ message, origin }) => `${message} (${origin})`);
  const canIgnore = refused.every(({ effect }) => effect.kind === "refused" && !effect.always);
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
  const needed = missing.filter((key) => reasonUnused(composed, key) === undefined);
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
