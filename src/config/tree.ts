/**
 * What YAML files, scripts and flags become before they are checked against the schema: a tree whose nodes know their origin. Also the
 * layers that origins belong to, and dotted paths in a tree.
 */
import { existsSync, readdirSync } from "node:fs";
import { dirname, join, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { printable } from "../base/text.ts";
import { ownValue } from "../base/values.ts";

export type Node = MapNode | ListNode | ValueNode;

export interface MapNode {
  kind: "map";
  origin: Origin;
  entries: Entry[];
}

export interface Entry {
  name: string;
  origin: Origin;
  node: Node;
}

interface ListNode {
  kind: "list";
  origin: Origin;
  items: Node[];
}

export interface ValueNode {
  kind: "value";
  origin: Origin;
  value: unknown;
  /** The original spelling of an unquoted number or boolean, for keys that accept text. */
  text?: string;
}

/** Converts a plain object to nodes. Members that are `undefined` are skipped. */
export function nodeFromObject(value: unknown, origin: Origin, depth = 0): Node {
  // Deeper than any configuration, so it is a cycle; the check rejects the value later.
  if (depth > 20) return { kind: "value", origin, value };
  if (Array.isArray(value)) {
    return { kind: "list", origin, items: value.map((item) => nodeFromObject(item, origin, depth + 1)) };
  }
  if (!isPlainObject(value)) return { kind: "value", origin, value };
  const entries = Object.entries(value)
    .filter(([, member]) => member !== undefined)
    .map(([name, member]) => ({ name, origin, node: nodeFromObject(member, origin, depth + 1) }));
  return { kind: "map", origin, entries };
}

/** Converts nodes to a plain object, list or value. */
export function plain(node: Node): unknown {
  if (node.kind === "value") return node.value;
  if (node.kind === "list") return node.items.map(plain);
  // Without a prototype, because a key may be named `__proto__`.
  const object: Record<string, unknown> = Object.create(null);
  for (const { name, node: child } of node.entries) object[name] = plain(child);
  return object;
}

/** The node at a dotted path, or undefined. List items are addressed by index. References are not followed. */
export function nodeAt(node: Node, path: readonly string[]): Node | undefined {
  return path.reduce<Node | undefined>((at, name) => (at === undefined ? undefined : childOf(at, name)), node);
}

/** A member of a section or an item of a list. */
export function childOf(node: Node, name: string): Node | undefined {
  if (node.kind === "map") return node.entries.find((entry) => entry.name === name)?.node;
  return node.kind === "list" && /^\d+$/.test(name) ? node.items[Number(name)] : undefined;
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== "object" || value === null) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

// Identifies YAML files that ship with Hone or verl, as opposed to the user's own.

/** The folder `config` at the root of the package, three folders above this file in the source and in the build. */
export const shippedFolder = fileURLToPath(new URL("../../config", import.meta.url));

/** The folder of verl's configuration: that of `HONE_VERL_PYTHON`, or else a copy of the version that Hone installs. */
export function verlFolder(): string {
  const shipped = join(shippedFolder, "verl");
  const python = process.env.HONE_VERL_PYTHON;
  if (!python) return shipped;
  const libraries = join(dirname(dirname(python)), "lib");
  if (!existsSync(libraries)) return shipped;
  const folders = readdirSync(libraries).map((version) =>
    join(libraries, version, "site-packages", "verl", "trainer", "config"),
  );
  return folders.find((folder) => existsSync(folder)) ?? shipped;
}

export function isShipped(file: string): boolean {
  return file.startsWith(shippedFolder + sep) || /[\\/]verl[\\/]trainer[\\/]config[\\/]/.test(file);
}

// The origin of a configuration value.

export type Origin =
  | { kind: "default" }
  /** A default of a command-line front end: `text` says which and why. */
  | { kind: "preset"; text: string }
  /** The `config` of the experiment's script. */
  | { kind: "script" }
  /** `config`: the name of the file in a defaults list, e.g. `rllm/backend/verl`. */
  | { kind: "file"; file: string; line: number; column: number; config?: string }
  /** A flag of a command-line front end, as typed. */
  | { kind: "flag"; text: string }
  /** An override, as typed. */
  | { kind: "override"; text: string }
  /** The reference `text` at `at` was replaced by its value; `from`: the origin of that value. */
  | { kind: "reference"; text: string; at: Origin; from?: Origin }
  /** Copied from the key `from`, another name of this key, which `of` set. */
  | { kind: "synced"; how: "synced" | "forwarded"; from: string; of: Origin };

/** The origin in one line: `default`, `gpu.yaml:3:5`, `command line: training.learning_rate=1e-4`. */
export function originText(origin: Origin): string {
  switch (origin.kind) {
    case "default":
      return "default";
    case "preset":
      return origin.text;
    case "script":
      return "the script's config";
    case "file":
      if (isShipped(origin.file)) return `default (${shippedName(origin.file)}:${origin.line})`;
      return `${oneLine(origin.file)}:${origin.line}:${origin.column}`;
    case "flag":
    case "override":
      return `command line: ${oneLine(origin.text)}`;
    case "reference": {
      const of = origin.from === undefined ? "" : originText(origin.from);
      const from = of === "" ? "" : origin.from?.kind === "synced" ? `, ${of}` : `, from ${of}`;
      return `${originText(origin.at)} (${oneLine(origin.text)}${from})`;
    }
    case "synced":
      return `${origin.how} from ${origin.from} (${originText(origin.of)})`;
  }
}

const shippedName = (file: string) =>
  oneLine(file.replaceAll("\\", "/").replace(/^.*\/(?=(config|verl\/trainer)\/)/, ""));

/** What set the value in the end: for a reference or a synchronized key, what set the place or the key that it is from. */
export type OriginKind = Exclude<Origin["kind"], "reference" | "synced">;

export function originKind(origin: Origin): OriginKind {
  switch (origin.kind) {
    case "file":
      return isShipped(origin.file) ? "default" : "file";
    case "reference":
      return originKind(origin.at);
    case "synced":
      return originKind(origin.of);
    default:
      return origin.kind;
  }
}

/** The priority of a layer: 0 shipped defaults, 1 the script's config, 2 files, 3 flags of a front end, 4 overrides. */
export function layerOf(origin: Origin): number {
  switch (origin.kind) {
    case "default":
    case "preset":
      return 0;
    case "script":
      return 1;
    case "file":
      return isShipped(origin.file) ? 0 : 2;
    case "flag":
      return 3;
    case "override":
      return 4;
    case "reference":
      return layerOf(origin.at);
    // The key itself was not set.
    case "synced":
      return 0;
  }
}

/** Escapes control characters and truncates long text for a message or a comment. */
export const oneLine = (text: string, limit = 120): string =>
  printable(text.length > limit ? `${text.slice(0, limit)}...` : text);

// Reads and writes a composed tree by dotted paths.

export interface Leaf {
  /** `"rllm.trainer.total_epochs"` */
  path: string;
  node: Node;
  /** The origin of the line that sets it. */
  origin: Origin;
}

export function nodeOf(tree: MapNode, path: string): Node | undefined {
  return nodeAt(tree, path.split("."));
}

/** Puts a node at a path and creates missing sections; a value in place of a section is replaced. */
export function putNode(tree: MapNode, path: string, node: Node): void {
  const names = path.split(".");
  const last = names.pop() ?? "";
  let section = tree;
  for (const name of names) {
    const found = section.entries.find((entry) => entry.name === name);
    if (found?.node.kind === "map") {
      section = found.node;
      continue;
    }
    const inner: MapNode = { kind: "map", origin: node.origin, entries: [] };
    putEntry(section, { name, origin: node.origin, node: inner });
    section = inner;
  }
  putEntry(section, { name: last, origin: node.origin, node });
}

function putEntry(section: MapNode, entry: Entry): void {
  const index = section.entries.findIndex(({ name }) => name === entry.name);
  if (index < 0) section.entries.push(entry);
  else section.entries[index] = entry;
}

/** Every key and section as a dotted path. */
export function pathsIn(node: Node, prefix = ""): string[] {
  if (node.kind !== "map") return [];
  return node.entries.flatMap(({ name, node: child }) => [`${prefix}${name}`, ...pathsIn(child, `${prefix}${name}.`)]);
}

/** Every value, list, empty section, and section that `isWhole` marks as a single value. */
export function leavesOf(node: Node, isWhole: (path: string) => boolean, path = ""): Leaf[] {
  if (node.kind !== "map" || node.entries.length === 0 || isWhole(path)) {
    return path === "" ? [] : [{ path, node, origin: latestOrigin(node) }];
  }
  return node.entries.flatMap(({ name, node: child }) =>
    leavesOf(child, isWhole, path === "" ? name : `${path}.${name}`),
  );
}

/** A section that is a single value was set where its latest member was set. */
function latestOrigin({ origin, ...node }: Node): Origin {
  if (node.kind !== "map") return origin;
  return node.entries
    .map((entry) => latestOrigin(entry.node))
    .reduce((latest, one) => (layerOf(one) > layerOf(latest) ? one : latest), origin);
}

/** A copy whose sections may be changed. */
export function copyTree(tree: MapNode): MapNode {
  return {
    ...tree,
    entries: tree.entries.map((entry) =>
      entry.node.kind === "map" ? { ...entry, node: copyTree(entry.node) } : { ...entry },
    ),
  };
}

// Dotted paths of keys, such as `training.learning_rate`.

export const leafOf = (key: string) => key.slice(key.lastIndexOf(".") + 1);
export const parentOf = (key: string) => key.slice(0, Math.max(0, key.lastIndexOf(".")));

/** The value at a path; undefined if a section on the path is missing. */
export function valueAt(tree: object, key: string): unknown {
  return key
    .split(".")
    .reduce<unknown>(
      (section, name) =>
        typeof section === "object" && section !== null
          ? ownValue(section as Record<string, unknown>, name)
          : undefined,
      tree,
    );
}

/** `where`: `"gpu.yaml:3:5"` or the flag verbatim. */
export interface Mistake {
  where: string;
  message: string;
}

export interface ConfigWarning {
  category: "deprecated_native" | "conflict" | "coerced" | "invalid" | "unsupported" | "no_effect";
  /** The affected keys; for a pair, both. */
  paths: readonly string[];
  text: string;
}
