/**
 * The composed configuration against what its backend honours, before anything starts: no key is ignored in silence.
 * What a key says of itself (`later`, `backends`, `neutral`) lies beside it in the schema.
 */
import { isDeepStrictEqual } from "node:util";
import { UserError } from "../errors.ts";
import { nearest } from "../nearest.ts";
import { own } from "../own.ts";
import { showValue } from "./check.ts";
import type { ComposedConfig } from "./compose.ts";
import { configKeys, type KeyDescription, openSectionOf, openSections } from "./describe.ts";
import { layerOf, originText } from "./origin.ts";
import type { Config } from "./schema.ts";
import { valueAt } from "./value-at.ts";
import type { ConfigWarning } from "./warnings.ts";

export interface Unsupported {
  key: string;
  /** Whether the user set it; else a front door did by itself, which is no reason to stop. */
  asked: boolean;
  /** Where the value came from. */
  origin: string;
  /** One sentence: what cannot be honoured, why, and what to set instead. */
  message: string;
}

/** Names that the user's own code has registered, by the key that may take them. */
export type RegisteredNames = Readonly<Record<string, readonly string[]>>;

/** Every setting that the chosen backend cannot honour, in the schema's order. */
export function unsupportedSettings(composed: ComposedConfig, registered: RegisteredNames = {}): Unsupported[] {
  const listed = [...configKeys.values()].flatMap((known) => {
    const origin = composed.origins.get(known.key) ?? { kind: "default" };
    const asked = origin.kind !== "preset";
    if (asked && layerOf(origin) === 0) return [];
    const reason = reasonAgainst(composed, known, own(registered, known.key));
    if (reason === undefined) return [];
    const { key, about } = known;
    const instead = about.instead === undefined ? "" : `; use ${about.instead}`;
    const value = showValue(valueAt(composed.config, key));
    return [{ key, asked, origin: originText(origin), message: `${key}=${value}: ${reason}${instead}` }];
  });
  return [...listed, ...unsupportedExtras(composed)];
}

/** Keys that the schema does not list, in sections that take such. */
function unsupportedExtras({ tree, origins }: ComposedConfig): Unsupported[] {
  return [...origins].flatMap(([key, origin]) => {
    const { later } = openSections.get(openSectionOf(key) ?? "") ?? {};
    if (typeof later !== "string" || layerOf(origin) === 0) return [];
    const message = `${key}=${showValue(valueAt(tree, key))}: ${later}`;
    return [{ key, asked: true, origin: originText(origin), message }];
  });
}

/** What a key does on the chosen backend, in words: for `hone config --explain`. */
export function effectOn(composed: ComposedConfig, known: KeyDescription): string {
  const { about } = known;
  const { backend } = composed.config.rllm;
  const reason = reasonAgainst(composed, known);
  if (reason !== undefined) return `refused on ${backend}: ${reason}`;
  if (about.backends !== undefined && !about.backends.includes(backend)) {
    return `none on ${backend}: only ${about.backends.join(" and ")} honours it`;
  }
  if (typeof about.later === "string") return `none yet: ${about.later}`;
  return about.neutral === undefined ? `acts on ${backend}` : "changes nothing";
}

/** @throws UserError that lists every key which still holds `???`, with its place */
export function requireValues({ missing, origins }: ComposedConfig): void {
  if (missing.length === 0) return;
  const lines = missing.map((key) => `${key} (${originText(origins.get(key)!)})`);
  throw new UserError(
    `${lines.length === 1 ? "a value" : `${lines.length} values`} must be given:\n  ${lines.join("\n  ")}`,
    {
      hint: `add to the command line: ${missing
        .slice(0, 5)
        .map((key) => `${key}=...`)
        .join(" ")}`,
    },
  );
}

/**
 * @returns what could not be honoured, for a warning each: what nobody asked for, and where `rllm.on_unsupported` is
 * `warn` all
 * @throws UserError naming every such setting that was asked for, where it came from and what to do
 */
export function requireSupport(composed: ComposedConfig, registered: RegisteredNames = {}): Unsupported[] {
  const found = unsupportedSettings(composed, registered);
  const refused = composed.config.rllm.on_unsupported === "warn" ? [] : found.filter(({ asked }) => asked);
  if (refused.length === 0) return found;
  const lines = refused.map(({ message, origin }) => `${message} (${origin})`);
  const { backend } = composed.config.rllm;
  throw new UserError(
    lines.length === 1
      ? `the ${backend} backend cannot honour ${lines[0]}`
      : `the ${backend} backend cannot honour ${lines.length} settings:\n  ${lines.join("\n  ")}`,
    { hint: "take them out, or go on without them by rllm.on_unsupported=warn" },
  );
}

/** @param dryRun whether nothing will run anyway, so that what would be refused is only said */
export function unsupportedWarning({ key, message, asked }: Unsupported, { dryRun = false } = {}): ConfigWarning {
  const then = asked && dryRun ? "a run would stop here" : "going on without it";
  return { category: "unsupported", paths: [key], text: `${message}; ${then}` };
}

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
    return `only ${backends.join(" and ")} honours it`;
  }
  if (typeof later === "string") return later;
  const given = (Array.isArray(value) ? value : [value]).filter((one) => typeof one === "string");
  for (const one of given) {
    if (registered.includes(one)) continue;
    if (later !== undefined && Object.hasOwn(later, one)) return later[one];
    if (open === undefined || open.includes(one)) continue;
    const near = nearest(one, [...open, ...registered], 2);
    const help = near.length > 0 ? `; did you mean ${near.join(" or ")}?` : `; there are ${open.join(", ")}`;
    return `there is no such name, and none was registered${help}`;
  }
  return undefined;
}
