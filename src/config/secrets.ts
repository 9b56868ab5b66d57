/**
 * What is stored and shown of a configuration: secrets are masked, and values from the environment become the reference that read them.
 * Mistakes and warnings in words.
 */
import { UserError } from "../base/errors.ts";
import { maskUrls, maskUrlsIn } from "../base/text.ts";
import { mayRefer } from "./hydra/parse-reference.ts";
import { configKeys } from "./schema.ts";
import { type ConfigWarning, childOf, type MapNode, type Mistake, type Node, plain, valueAt } from "./tree.ts";
import { escapeReferences } from "./yaml.ts";

/** Replaces a secret given as plain text. Code that needs the secret rejects this value. */
export const maskedSecret = "<secret: not saved>";

const isSecret = (path: string): boolean => configKeys.get(path)?.about.secret === true;

export interface WithoutSecrets {
  /** Reads back as the same configuration except for secrets: text is escaped, references are not. */
  tree: Record<string, unknown>;
  /** The replacement of each masked value, by path. */
  masks: ReadonlyMap<string, string>;
}

/**
 * @param resolved the tree without references
 * @param written the same tree with references
 * @param environment values that references read from the environment
 */
export function withoutSecrets(resolved: MapNode, written: MapNode, environment: ReadonlySet<string>): WithoutSecrets {
  const masks = new Map<string, string>();
  const mask = (path: string, text: string) => {
    masks.set(path, text);
    return text;
  };

  function walk(node: Node, source: Node | undefined, path: string): unknown {
    if (source?.kind === "value" && mayRefer(source.value)) {
      if (isSecret(path) || holdsAny(node, environment)) return mask(path, source.value);
    } else if (isSecret(path) && isGiven(path, node)) return mask(path, maskedSecret);
    const child = (name: string) => source && childOf(source, name);
    if (node.kind === "list") return node.items.map((item, index) => walk(item, child(`${index}`), `${path}.${index}`));
    if (node.kind === "value") {
      if (typeof node.value !== "string") return node.value;
      const text = maskUrls(node.value);
      return escapeReferences(text === node.value ? text : mask(path, text));
    }
    const inside = (name: string) => (path === "" ? name : `${path}.${name}`);
    const section: Record<string, unknown> = Object.create(null);
    for (const { name, node: entry } of node.entries) section[name] = walk(entry, child(name), inside(name));
    return section;
  }
  return { tree: walk(resolved, written, "") as Record<string, unknown>, masks };
}

/** A resolved tree with its masks applied. */
export function shownTree(tree: unknown, masks: ReadonlyMap<string, string>, path = ""): unknown {
  const mask = masks.get(path);
  if (mask !== undefined) return mask;
  if (typeof tree !== "object" || tree === null) return tree;
  const inside = (name: string) => (path === "" ? name : `${path}.${name}`);
  if (Array.isArray(tree)) return tree.map((item, index) => shownTree(item, masks, inside(`${index}`)));
  return Object.fromEntries(Object.entries(tree).map(([name, child]) => [name, shownTree(child, masks, inside(name))]));
}

/** The value of a key for showing: masked if the value, a section around it or parts of it are masked. */
export function shownValue(value: unknown, masks: ReadonlyMap<string, string>, key: string): unknown {
  for (let path = key; path.includes("."); ) {
    path = path.slice(0, path.lastIndexOf("."));
    const found = masks.get(path);
    if (found !== undefined) return found;
  }
  return shownTree(value, masks, key);
}

/** Masks the secrets of a tree and leaves its references unchanged. */
export function maskLiterals(tree: Record<string, unknown>): Record<string, unknown> {
  for (const { key } of secretKeys) {
    const dot = key.lastIndexOf(".");
    const section = dot < 0 ? tree : (valueAt(tree, key.slice(0, dot)) as Record<string, unknown> | undefined);
    const last = key.slice(dot + 1);
    if (section && Object.hasOwn(section, last) && isGivenValue(key, section[last])) section[last] = maskedSecret;
  }
  return maskUrlsIn(tree) as Record<string, unknown>;
}

const secretKeys = [...configKeys.values()].filter(({ about }) => about.secret === true);

const isGiven = (path: string, node: Node): boolean => isGivenValue(path, plain(node));

/** The default is public, and a reference is not a secret. */
const isGivenValue = (path: string, value: unknown): boolean =>
  value !== null && value !== configKeys.get(path)?.default && !mayRefer(value);

function holdsAny(node: Node, texts: ReadonlySet<string>): boolean {
  if (node.kind === "list") return node.items.some((item) => holdsAny(item, texts));
  if (node.kind === "map") return node.entries.some(({ node: entry }) => holdsAny(entry, texts));
  const { value } = node;
  if (typeof value !== "string") return false;
  // The value is part of a decoded variable, or contains one.
  return [...texts].some((text) => text !== "" && (value.includes(text) || (value.length > 3 && text.includes(value))));
}

/** Masks the value of an override that sets a secret: `rllm.sdk.proxy.admin_token=***`. */
export function maskOverride(text: string): string {
  const key = /^\s*[+~]*([^=]*)=/.exec(text)?.[1]?.trim();
  const setsSecret = secretKeys.some(
    ({ key: secret }) => key !== undefined && (`${secret}.`.startsWith(`${key}.`) || key.startsWith(`${secret}.`)),
  );
  return setsSecret ? `${text.slice(0, text.indexOf("=") + 1)}***` : maskUrls(text);
}

const maxShown = 30;

/** An error that lists every mistake with its location. */
export function mistakesError(mistakes: readonly Mistake[], hint?: string): UserError {
  const lines = mistakes.map(({ where, message }) => `${maskOverride(where)}: ${message}`);
  const shown = lines.slice(0, maxShown);
  if (lines.length > maxShown) shown.push(`... and ${lines.length - maxShown} more`);
  const message =
    lines.length === 1 ? lines[0]! : `${lines.length} mistakes in the configuration:\n  ${shown.join("\n  ")}`;
  return new UserError(message, hint === undefined ? {} : { hint });
}

/** The run can continue, but the user should know. */
export function printWarnings(warnings: readonly ConfigWarning[]): void {
  for (const warning of warnings) process.stderr.write(`${warningLine(warning)}\n`);
}

/** One line for standard error: `warning[conflict]: ...`. */
export function warningLine({ category, text }: ConfigWarning): string {
  return `warning[${category}]: ${text}`;
}
