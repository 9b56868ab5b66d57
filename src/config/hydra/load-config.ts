/** Loads a configuration from the search path: its values, package header and defaults list, with origins. */

import { type Mistake, mistakesError } from "../mistakes.ts";
import type { MapNode, Node } from "../tree/node.ts";
import { type Origin, oneLine } from "../tree/origin.ts";
import { isShipped } from "../tree/shipped.ts";
import { positionText, readTextFile, readYaml } from "../yaml/read-yaml.ts";
import type { SearchPath } from "./search-path.ts";

interface LoadedConfig {
  file: string;
  /** The values without the defaults list. */
  tree: MapNode;
  /** The package in the header line `# @package ...`. */
  header: string | undefined;
  defaults: DefaultEntry[];
}

/** An item of a defaults list as written. */
export interface DefaultEntry {
  kind: "self" | "config" | "group";
  /** Whether the path starts at the search path's root instead of the file's folder. */
  absolute: boolean;
  /** `a/b` for both `a/b/c` and `a/b: c`. */
  group: string;
  /** The option or options: `c` for `a/b/c`; null selects no option. */
  option: string | string[] | null;
  package: string | undefined;
  optional: boolean;
  override: boolean;
  origin: Origin;
}

/** Shipped files do not change while a process runs. */
const shippedConfigs = new Map<string, LoadedConfig>();

/** An entry without keywords and package. `kind`, `group` and `option` as in {@link DefaultEntry}. */
export function plainEntry(
  kind: DefaultEntry["kind"],
  group: string,
  option: DefaultEntry["option"],
  origin: Origin,
): DefaultEntry {
  return { kind, group, option, origin, absolute: false, package: undefined, optional: false, override: false };
}

export type LoadConfig = (name: string) => LoadedConfig | undefined;

/** @returns a function that reads each file once and throws a UserError listing every mistake in a file */
export function configLoader(path: () => SearchPath): LoadConfig {
  const loaded = new Map<string, LoadedConfig | undefined>();
  return (name) => {
    const found = loaded.get(name);
    if (found !== undefined || loaded.has(name)) return found;
    const file = path().file(name);
    const config = file === undefined ? undefined : (shippedConfigs.get(file + name) ?? loadFile(file, name));
    if (config !== undefined && isShipped(config.file)) shippedConfigs.set(config.file + name, config);
    loaded.set(name, config);
    return config;
  };
}

function loadFile(file: string, config: string): LoadedConfig {
  const read = readTextFile(file);
  if (read.mistake !== undefined) throw mistakesError([read.mistake]);
  const origin = (line: number, column: number): Origin => ({ kind: "file", file, line, column, config });
  const { node, mistakes } = readYaml(read.text, origin);
  const complain = (at: Origin, message: string) => mistakes.push({ where: positionText(at), message });
  const header = packageHeader(read.text, (line, message) => complain(origin(line, 1), message));
  let tree: MapNode = { kind: "map", origin: origin(1, 1), entries: [] };
  let defaults: DefaultEntry[] = [];
  if (node?.kind === "map") {
    const list = node.entries.find(({ name }) => name === "defaults");
    tree = { ...node, entries: node.entries.filter((entry) => entry !== list) };
    if (list !== undefined) defaults = readDefaults(list.node, complain);
  } else if (node !== undefined && !(node.kind === "value" && node.value === null)) {
    complain(node.origin, "a configuration file must have keys with values");
  }
  if (mistakes.length > 0) throw mistakesError(mistakes as Mistake[]);
  return { file, tree, header, defaults };
}

/** Comment lines `# @key value` at the top of a file. */
function packageHeader(text: string, complain: (line: number, message: string) => void): string | undefined {
  let header: string | undefined;
  for (const [index, line] of text.split(/\r?\n/).entries()) {
    if (line.trim() === "") continue;
    if (!/^\s*#\s*@/.test(line)) break;
    const [key, value, ...more] = line
      .trim()
      .replace(/^#+\s*/, "")
      .split(/ +/);
    if (value === undefined || more.length > 0) complain(index + 1, "a header has the form `# @package name`");
    else if (key === "@package") header = value;
  }
  return header;
}

type Complain = (at: Origin, message: string) => void;

function readDefaults(node: Node, complain: Complain): DefaultEntry[] {
  if (node.kind !== "list") {
    complain(node.origin, "defaults must be a list: one `- group: option` per line");
    return [];
  }
  return node.items.flatMap((item) => readDefault(item, complain) ?? []);
}

function readDefault(item: Node, complain: Complain): DefaultEntry | undefined {
  const { origin } = item;
  if (item.kind === "value" && typeof item.value === "string") return configEntry(item.value, origin, complain);
  const [entry, ...others] = item.kind === "map" ? item.entries : [];
  if (entry === undefined || others.length > 0) {
    complain(origin, "an item of the defaults list must be a file name or one `group: option`");
    return undefined;
  }
  const { name, node } = entry;
  const words = name.split(" ");
  const [written, place] = splitPackage(words.pop() ?? "");
  const unknown = words.find((word) => word !== "optional" && word !== "override");
  if (unknown !== undefined || written.replace(/^\//, "") === "") {
    complain(origin, `${oneLine(name)} is not a config group; only optional and override may precede its name`);
    return undefined;
  }
  const option = optionOf(node);
  if (option === undefined) {
    complain(origin, `the option of ${oneLine(name)} must be a name, a list of names, or null`);
    return undefined;
  }
  return {
    kind: option === "_self_" ? "self" : "group",
    absolute: written.startsWith("/"),
    group: written.replace(/^\//, ""),
    option,
    package: place,
    optional: words.includes("optional"),
    override: words.includes("override"),
    origin,
  };
}

function configEntry(text: string, origin: Origin, complain: Complain): DefaultEntry | undefined {
  const [path, place] = splitPackage(text);
  const self = path === "_self_";
  if (self && place !== undefined) {
    complain(origin, "_self_ cannot have a package");
    return undefined;
  }
  const parts = path.replace(/^\//, "").split("/");
  return {
    ...plainEntry(self ? "self" : "config", parts.slice(0, -1).join("/"), parts.at(-1) ?? "", origin),
    absolute: path.startsWith("/"),
    package: place,
  };
}

/** `group@package`. `_here_` is the package of the file itself. */
function splitPackage(text: string): [string, string | undefined] {
  const at = text.indexOf("@");
  if (at < 0) return [text, undefined];
  const place = text.slice(at + 1).replace(/:.*$/s, "");
  return [text.slice(0, at), place === "_here_" ? "" : place];
}

function optionOf(node: Node): string | string[] | null | undefined {
  if (node.kind === "value") {
    if (node.value === null || typeof node.value === "string") return node.value;
    return undefined;
  }
  if (node.kind === "map") return undefined;
  const names = node.items.map((item) => (item.kind === "value" ? item.value : undefined));
  return names.every((name) => typeof name === "string") ? (names as string[]) : undefined;
}
