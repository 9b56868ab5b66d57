/**
 * Checks before start that the backend supports every setting, so no key is ignored silently.
 * The metadata of a key (`later`, `backends`, `neutral`) is next to it in the schema.
 */
import { isDeepStrictEqual } from "node:util";
import { UserError } from "../errors.ts";
import { nearest } from "../nearest.ts";
import { own } from "../own.ts";
import { backendSettings } from "./backends.ts";
import { showValue } from "./check.ts";
import type { ComposedConfig } from "./compose.ts";
import { configKeys, type KeyDescription, openSectionOf, openSections } from "./describe.ts";
import { layerOf, originText } from "./origin.ts";
import type { Config } from "./schema.ts";
import { valueAt } from "./value-at.ts";
import type { ConfigWarning } from "./warnings.ts";

export interface Unsupported {
  key: string;
  /** Whether the user set it. A value preset by a command-line front end is not a reason to stop. */
  setByUser: boolean;
  /** The origin of the value in words. */
  origin: string;
  /** One sentence: the unsupported setting, the reason, and what to set instead. */
  message: string;
}

/** Names registered by the user's own code, by the key that accepts them. */
export type RegisteredNames = Readonly<Record<string, readonly string[]>>;

/** Every setting that the chosen backend does not support, in the schema's order. */
export function unsupportedSettings(composed: ComposedConfig, registered: RegisteredNames = {}): Unsupported[] {
  const listed = [...configKeys.values()].flatMap((known) => {
    const origin = composed.origins.get(known.key) ?? { kind: "default" };
    const setByUser = origin.kind !== "preset";
    if (setByUser && layerOf(origin) === 0) return [];
    const reason = reasonAgainst(composed, known, own(registered, known.key));
    if (reason === undefined) return [];
    const { key, about } = known;
    const instead = about.instead === undefined ? "" : `; use ${about.instead}`;
    const value = showValue(valueAt(composed.config, key));
    return [{ key, setByUser, origin: originText(origin), message: `${key}=${value}: ${reason}${instead}` }];
  });
  return [...listed, ...unsupportedExtras(composed)];
}

/** Unlisted keys in sections that accept further keys. */
function unsupportedExtras({ tree, origins }: ComposedConfig): Unsupported[] {
  return [...origins].flatMap(([key, origin]) => {
    const { later } = openSections.get(openSectionOf(key) ?? "") ?? {};
    if (typeof later !== "string" || layerOf(origin) === 0) return [];
    const message = `${key}=${showValue(valueAt(tree, key))}: ${later}`;
    return [{ key, setByUser: true, origin: originText(origin), message }];
  });
}

/** The effect of a key on the chosen backend in words, for `hone config --explain`. */
export function effectOn(composed: ComposedConfig, known: KeyDescription): string {
  const { about } = known;
  const { backend } = composed.config.rllm;
  const { notBuilt } = backendSettings[backend];
  const reason = reasonAgainst(composed, known);
  if (reason !== undefined) return `rejected on ${backend}: ${reason}`;
  if (about.backends !== undefined && !about.backends.includes(backend)) {
    return `none on ${backend}: ${onlyOn(about.backends)}`;
  }
  if (typeof about.later === "string") return `none so far: ${about.later}`;
  if (notBuilt !== undefined) return `none so far: ${notBuilt}`;
  return about.neutral === undefined ? `takes effect on ${backend}` : "none: this value changes nothing";
}

/** @throws UserError listing every key whose value is still `???`, with its origin */
export function requireValues({ missing, origins }: ComposedConfig): void {
  if (missing.length === 0) return;
  const lines = missing.map((key) => `${key} (${originText(origins.get(key)!)})`);
  throw new UserError(
    `${lines.length === 1 ? "a required value is" : `${lines.length} required values are`} missing:\n  ${lines.join("\n  ")}`,
    {
      hint: `add to the command line: ${missing
        .slice(0, 5)
        .map((key) => `${key}=...`)
        .join(" ")}`,
    },
  );
}

/**
 * @returns the unsupported settings to warn about: those not set by the user, and all of them if
 * `rllm.on_unsupported` is `warn`
 * @throws UserError naming every unsupported setting that the user set, its origin and what to do
 */
export function requireSupport(composed: ComposedConfig, registered: RegisteredNames = {}): Unsupported[] {
  const found = unsupportedSettings(composed, registered);
  const refused = composed.config.rllm.on_unsupported === "warn" ? [] : found.filter(({ setByUser }) => setByUser);
  if (refused.length === 0) return found;
  const lines = refused.map(({ message, origin }) => `${message} (${origin})`);
  const { backend } = composed.config.rllm;
  throw new UserError(
    lines.length === 1
      ? `the ${backend} backend does not support ${lines[0]}`
      : `the ${backend} backend does not support ${lines.length} settings:\n  ${lines.join("\n  ")}`,
    { hint: "remove them, or set rllm.on_unsupported=warn to run without them" },
  );
}

/** @param dryRun whether nothing is going to run, so rejected settings are only reported */
export function unsupportedWarning({ key, message, setByUser }: Unsupported, { dryRun = false } = {}): ConfigWarning {
  const consequence = setByUser && dryRun ? "a run would stop here" : "continuing without it";
  return { category: "unsupported", paths: [key], text: `${message}; ${consequence}` };
}

const onlyOn = (backends: readonly string[]) => `only the ${backends.join(" and ")} backend supports it`;

function isDefault({ default: fallback }: KeyDescription, value: unknown, config: Config): boolean {
  const resolved =
    typeof fallback === "string"
      ? fallback.replaceAll(/\$\{([\w.]+)\}/g, (_, key) => String(valueAt(config, key)))
      : fallback;
  return isDeepStrictEqual(value, resolved);
}

function reasonAgainst(
  { config }: ComposedConfig,
  known: KeyDescription,
  registered: readonly string[] = [],
): string | undefined {
  const { later, backends, neutral, options: open } = known.about;
  const value = valueAt(config, known.key);
  if (isDefault(known, value, config) || neutral?.some((one) => isDeepStrictEqual(one, value))) return undefined;
  if (backends !== undefined && !backends.includes(config.rllm.backend)) {
    return onlyOn(backends);
  }
  if (typeof later === "string") return later;
  const given = (Array.isArray(value) ? value : [value]).filter((one) => typeof one === "string");
  for (const one of given) {
    if (registered.includes(one)) continue;
    if (later !== undefined && Object.hasOwn(later, one)) return later[one];
    if (open === undefined || open.includes(one)) continue;
    const near = nearest(one, [...open, ...registered], 2);
    const help = near.length > 0 ? `; did you mean ${near.join(" or ")}?` : `; built in: ${open.join(", ")}`;
    return `the name is neither built in nor registered${help}`;
  }
  return undefined;
}
