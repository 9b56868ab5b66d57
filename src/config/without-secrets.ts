/**
 * A composed configuration as it may be stored and shown: secrets masked, and what came from the environment as the
 * reference that fetches it.
 */
import { configKeys } from "./describe.ts";
import { mayRefer } from "./hydra/parse-reference.ts";
import { childOf, type MapNode, type Node, plain } from "./node.ts";
import { escapeReferences } from "./to-yaml.ts";

/** In place of a secret that was given as it is. Where the secret is needed this value is refused. */
export const maskedSecret = "<secret: not saved>";

const isSecret = (path: string): boolean => configKeys.get(path)?.about.secret === true;

export interface WithoutSecrets {
  /** Reads back as the same configuration, secrets aside: text is escaped, references are not. */
  tree: Record<string, unknown>;
  /** What stands in the tree in place of a value, by its path. */
  masks: ReadonlyMap<string, string>;
}

/**
 * @param resolved without references
 * @param written the same tree with them
 * @param environment values that references fetched from the environment
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
    if (node.kind === "value") return typeof node.value === "string" ? escapeReferences(node.value) : node.value;
    const inside = (name: string) => (path === "" ? name : `${path}.${name}`);
    const section: Record<string, unknown> = Object.create(null);
    for (const { name, node: entry } of node.entries) section[name] = walk(entry, child(name), inside(name));
    return section;
  }
  return { tree: walk(resolved, written, "") as Record<string, unknown>, masks };
}

/** A resolved tree with its masks in place. */
export function shownTree(tree: unknown, masks: ReadonlyMap<string, string>, path = ""): unknown {
  const mask = masks.get(path);
  if (mask !== undefined) return mask;
  if (typeof tree !== "object" || tree === null) return tree;
  const inside = (name: string) => (path === "" ? name : `${path}.${name}`);
  if (Array.isArray(tree)) return tree.map((item, index) => shownTree(item, masks, inside(`${index}`)));
  return Object.fromEntries(Object.entries(tree).map(([name, child]) => [name, shownTree(child, masks, inside(name))]));
}

/** The value of a key as it may be shown: a mask of the section around it, or masks within it, take its place. */
export function shownValue(value: unknown, masks: ReadonlyMap<string, string>, key: string): unknown {
  for (let path = key; path.includes("."); ) {
    path = path.slice(0, path.lastIndexOf("."));
    const found = masks.get(path);
    if (found !== undefined) return found;
  }
  return shownTree(value, masks, key);
}

/** Masks the secrets of a tree whose references are left as they are. */
export function maskLiterals(tree: Record<string, unknown>): Record<string, unknown> {
  for (const { key } of secretKeys) {
    const names = key.split(".");
    const last = names.pop()!;
    const section = names.reduce<unknown>((at, name) => (at as Record<string, unknown> | undefined)?.[name], tree);
    const at = section as Record<string, unknown> | undefined;
    if (at !== undefined && Object.hasOwn(at, last) && isGivenValue(key, at[last])) at[last] = maskedSecret;
  }
  return tree;
}

const secretKeys = [...configKeys.values()].filter(({ about }) => about.secret === true);

const isGiven = (path: string, node: Node): boolean => isGivenValue(path, plain(node));

/** The default is in the documents, and a reference is no secret. */
const isGivenValue = (path: string, value: unknown): boolean =>
  value !== null && value !== configKeys.get(path)?.default && !mayRefer(value);

function holdsAny(node: Node, texts: ReadonlySet<string>): boolean {
  if (node.kind === "list") return node.items.some((item) => holdsAny(item, texts));
  if (node.kind === "map") return node.entries.some(({ node: entry }) => holdsAny(entry, texts));
  const { value } = node;
  if (typeof value !== "string") return false;
  // A part of a decoded value, or text that a value was put into.
  return [...texts].some((text) => text !== "" && (value.includes(text) || (value.length > 3 && text.includes(value))));
}
