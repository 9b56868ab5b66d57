/**
 * Hydra's composition: combines a primary configuration, the files in its defaults list and command-line overrides into one tree with the
 * origin of every value. Knows nothing of the schema.
 */
import { isDeepStrictEqual } from "node:util";
import { UserError } from "../../base/errors.ts";
import { nearest } from "../../base/text.ts";
import { mistakesError } from "../secrets.ts";
import {
  childOf,
  type Entry,
  type MapNode,
  type Mistake,
  type Node,
  nodeAt,
  type Origin,
  oneLine,
  pathsIn,
  plain,
  type ValueNode,
} from "../tree.ts";
import { positionText } from "../yaml.ts";
import { type DefaultsList, defaultsList } from "./defaults.ts";
import { configLoader, type LoadConfig, type SearchPath, searchPath } from "./load-config.ts";
import {
  type Element,
  elementText,
  elementToNode,
  isMistake,
  isSweep,
  type Override,
  parseOverride,
  type Sweep,
} from "./overrides.ts";
import { mayRefer } from "./parse-reference.ts";
import { dereference, type ResolverSettings, select } from "./resolve.ts";

export interface HydraRequest {
  /** Folders (paths, `file://...`, `pkg://python.package`); the first that contains a file wins. */
  searchPath: readonly string[];
  /** The name of the primary config, e.g. `unified`; without it, the composition starts empty. */
  configName?: string;
  /** Overrides as typed on the command line. */
  overrides?: readonly string[];
  /** Merged beneath the files, e.g. a schema's defaults. */
  base?: MapNode;
  /** Whether a section accepts any keys: then overrides may add keys to it without a `+`. */
  isFree?: (key: string) => boolean;
  /** Merged over the files and beneath the overrides, e.g. a script's config and further YAML files; later ones win. */
  layers?: readonly MapNode[];
}

/** The `hydra` section: the settings that Hone supports. All others are refused. */
interface HydraSettings {
  /** `hydra.mode=MULTIRUN` is `--multirun`. */
  multirun: boolean;
  /** `hydra.run.dir`: the run's folder. */
  runDir: ValueNode | undefined;
  /** `hydra.sweep.dir`: the folder of a multirun's folders. */
  sweepDir: ValueNode | undefined;
}

export interface HydraComposition {
  /** The tree without the `hydra` section. References (`${...}`) and `???` are unresolved; see `resolveTree`. */
  tree: MapNode;
  /** Every override in order, including those of config groups. */
  overrides: Override[];
  /** The option of each config group, e.g. `rllm/backend` -> `verl`. */
  choices: ReadonlyMap<string, string | null>;
  /** The settings that `resolveTree` and `select` need for this composition. */
  resolvers: Pick<ResolverSettings, "choices" | "configName">;
  hydra: HydraSettings;
  /** Includes the entries of `hydra.searchpath`. */
  searchPath: SearchPath;
}

/**
 * @example
 * const { tree, resolvers } = composeHydra({ searchPath: ["conf"], configName: "train", overrides: ["db=mysql", "lr=1e-4"] });
 * const { tree: resolved } = resolveTree(tree, resolvers);
 * @throws UserError with the location of each mistake: file, line and column, or the override
 */
export function composeHydra({
  configName,
  overrides: texts = [],
  base,
  layers = [],
  isFree = () => false,
  ...request
}: HydraRequest): HydraComposition {
  const mistakes: Mistake[] = [];
  const overrides = texts.flatMap((text) => {
    const parsed = parseOverride(text);
    if (!isMistake(parsed)) return [parsed];
    mistakes.push(parsed);
    return [];
  });
  for (const { key, value, text } of overrides) {
    const where = oneLine(text);
    if (/^hydra\//.test(key)) mistakes.push({ where, message: `${key} ${hasNoMeaning(key)}` });
    else if (isSweep(value)) mistakes.push({ where, message: sweepMessage(key, value) });
  }
  if (mistakes.length > 0) throw mistakesError(mistakes);

  let path = searchPath(request.searchPath);
  const load = configLoader(() => path);
  const [searchOverride, others] = takeSearchPath(overrides);
  path = path.with(searchEntries(searchOverride, configName === undefined ? undefined : load(configName)?.tree));
  const isGroup = ({ key, value }: Override) => value?.type !== "dict" && path.isGroup(key.replaceAll("\\", "/"));
  const groupOverrides = others.filter(isGroup);
  const list: DefaultsList =
    configName === undefined
      ? {
          configs: [],
          choices: new Map(),
          mistakes: groupOverrides.map(({ key, text }) => ({
            where: oneLine(text),
            message: `${key} is a config group, but there is no primary configuration`,
          })),
        }
      : defaultsList(configName, groupOverrides, load, path);
  mistakes.push(...list.mistakes);

  let tree: MapNode = base ?? { kind: "map", origin: { kind: "default" }, entries: [] };
  for (const config of list.configs) tree = merge(tree, packaged(config, load, mistakes));
  for (const layer of layers) tree = merge(tree, layer);
  for (const override of others) {
    if (isGroup(override)) continue;
    // Hydra's own section accepts any key here; unsupported ones are rejected by name below.
    const open = override.kind === "change" && (/^hydra\./.test(override.key) || isFree(override.key));
    tree = applyOverride(tree, open ? { ...override, kind: "force-add" } : override, mistakes);
  }
  if (mistakes.length > 0) throw mistakesError(mistakes);

  const resolvers = { choices: list.choices, configName };
  const section = childOf(tree, "hydra");
  const resolved = section === undefined ? undefined : select(tree, "hydra", resolvers);
  if (resolved !== undefined && resolved.kind !== "map") {
    mistakes.push({ where: positionText(resolved.origin), message: "hydra must be a section of settings" });
  }
  const hydra = readHydraSettings(resolved?.kind === "map" ? resolved : undefined, mistakes);
  if (mistakes.length > 0) throw mistakesError(mistakes);
  tree = { ...tree, entries: tree.entries.filter(({ name }) => name !== "hydra") };
  return { tree, overrides, choices: list.choices, resolvers, hydra, searchPath: path };
}

function sweepMessage(key: string, sweep: Sweep): string {
  if (sweep.type !== "choice" || !sweep.simple) return "is a sweep, one run for each value; add --multirun (-m)";
  const items = oneLine(sweep.items.map(elementText).join(","), 60);
  return `contains commas: write ${key}=[${items}] for a list, quote it for text ("${key}='${items}'" in a shell), or add --multirun (-m) for one run each`;
}

/** `hydra.searchpath=[...]` is applied first, because other overrides may name groups found there. */
function takeSearchPath(overrides: readonly Override[]): [Override | undefined, Override[]] {
  const isSearchPath = ({ key }: Override) => key === "hydra.searchpath";
  return [overrides.findLast(isSearchPath), overrides.filter((override) => !isSearchPath(override))];
}

/** The entries set on the command line, or else in the primary configuration. */
function searchEntries(override: Override | undefined, primary: MapNode | undefined): string[] {
  const origin = { kind: "override", text: override?.text ?? "" } as const;
  const value = override?.value;
  const given =
    value !== undefined && !isSweep(value)
      ? elementToNode(value, origin)
      : primary !== undefined && nodeAt(primary, ["hydra", "searchpath"]) !== undefined
        ? select(primary, "hydra.searchpath")
        : undefined;
  if (override?.kind === "delete" || given === undefined || (given.kind === "value" && given.value === null)) return [];
  const entries = plain(given);
  if (Array.isArray(entries) && entries.every((entry) => typeof entry === "string")) return entries;
  throw new UserError(
    `${positionText(given.origin)}: hydra.searchpath must be a list of text, e.g. [file://conf,pkg://verl.trainer.config]`,
  );
}

/** The values of a file, placed in the section that its package names. */
function packaged(config: DefaultsList["configs"][number], load: LoadConfig, mistakes: Mistake[]): MapNode {
  const { tree } = load(config.name)!;
  const whole = config.package === "" ? tree : (wrap(tree, config.package.split(".")) as MapNode);
  const search = config.primary ? undefined : nodeAt(whole, ["hydra", "searchpath"]);
  if (search !== undefined) {
    mistakes.push({
      where: positionText(search.origin),
      message: "hydra.searchpath is allowed only in the primary configuration",
    });
  }
  return whole;
}

const meaningful = ["hydra.searchpath", "hydra.mode", "hydra.run.dir", "hydra.sweep.dir"];

/** Settings that are accepted only with the value that matches Hone's behavior. */
const unchanged: ReadonlyMap<string, { value: unknown; does: string }> = new Map([
  ["hydra.job.chdir", { value: false, does: "Hone never changes the working folder" }],
  [
    "hydra.output_subdir",
    { value: null, does: "Hone writes no .hydra folder; a run's folder holds its configuration" },
  ],
]);

/** @param section resolved */
function readHydraSettings(section: MapNode | undefined, mistakes: Mistake[]): HydraSettings {
  const text = (key: string): ValueNode | undefined => {
    const node = section && nodeAt(section, key.split("."));
    if (node === undefined || (node.kind === "value" && node.value === null)) return undefined;
    if (node.kind === "value" && typeof node.value === "string") return node;
    mistakes.push({ where: positionText(node.origin), message: `hydra.${key} takes text` });
    return undefined;
  };
  if (section !== undefined) checkKeys(section, "hydra", mistakes);
  const mode = text("mode");
  if (mode !== undefined && mode.value !== "RUN" && mode.value !== "MULTIRUN") {
    const message = `hydra.mode takes RUN or MULTIRUN, not ${oneLine(String(mode.value))}`;
    mistakes.push({ where: positionText(mode.origin), message });
  }
  return { multirun: mode?.value === "MULTIRUN", runDir: text("run.dir"), sweepDir: text("sweep.dir") };
}

function checkKeys(node: Node, key: string, mistakes: Mistake[]): void {
  if (meaningful.includes(key)) return;
  if (node.kind === "map" && [...meaningful, ...unchanged.keys()].some((known) => known.startsWith(`${key}.`))) {
    for (const { name, node: child } of node.entries) checkKeys(child, `${key}.${name}`, mistakes);
    return;
  }
  const where = positionText(node.origin);
  const same = unchanged.get(key);
  if (same === undefined) mistakes.push({ where, message: `${oneLine(key)} ${hasNoMeaning(key)}` });
  else if (JSON.stringify(plain(node)) !== JSON.stringify(same.value)) {
    mistakes.push({ where, message: `${key} can only be ${String(same.value)}: ${same.does}` });
  }
}

/** Why one of Hydra's own settings or groups is rejected. */
function hasNoMeaning(key: string): string {
  const known = [...meaningful, ...unchanged.keys()];
  const near = nearest(key, known);
  const help = near.length > 0 ? `did you mean ${near.join(" or ")}?` : `Hone supports ${known.join(", ")}`;
  return `is a setting of Hydra's own machinery, which Hone does not have; ${help}`;
}

// Applies command-line overrides to a composed tree.

/** A mistake in an override, collected with all others. */
class OverrideMistake extends Error {}

/** Returns the tree after the override; on a mistake, adds it to `mistakes` and returns the tree unchanged. */
function applyOverride(tree: MapNode, override: Override, mistakes: Mistake[]): MapNode {
  try {
    const { kind, key, package: place } = override;
    if (place !== undefined) throw new OverrideMistake(`${key} is not a config group, so @${place} does not apply`);
    return kind === "delete" ? remove(tree, override) : set(tree, override);
  } catch (error) {
    if (!(error instanceof OverrideMistake)) throw error;
    mistakes.push({ where: oneLine(override.text), message: error.message });
    return tree;
  }
}

function set(tree: MapNode, { kind, key, value, text }: Override): MapNode {
  const path = key.split(".");
  const origin: Origin = { kind: "override", text };
  const node = elementToNode(value as Element, origin);
  const at = nodeAt(tree, path);
  if (kind === "add" && node.kind === "value" && isTaken(tree, path)) {
    const without = text.replace(/^\+/, "");
    throw new OverrideMistake(`${key} already exists; write ${without} to change it, or +${text} to add or change it`);
  }
  if (kind === "change") requireKnown(tree, path, node);
  requireIndex(tree, path);
  if (at === undefined || at.kind === "value" || node.kind === "value") return replaceAt(tree, path, node);
  if (at.kind !== node.kind) {
    const [found, given] = node.kind === "list" ? ["a section", "a list"] : ["a list", "a section"];
    throw new OverrideMistake(`${key} is ${found} (${positionText(at.origin)}) and cannot become ${given}`);
  }
  if (node.kind === "list") return replaceAt(tree, path, node);
  // Wrapped in a section, so the merge also works if the path goes through list items.
  const merged = merge(wrap(at, ["_"]) as MapNode, wrap(node, ["_"]) as MapNode);
  return replaceAt(tree, path, childOf(merged, "_"));
}

/** Whether `+key=` is refused. A key whose value is null or `???` may be added. */
function isTaken(tree: MapNode, path: readonly string[]): boolean {
  const node = nodeAt(tree, path);
  if (node === undefined || isMissing(node)) return false;
  const found = dereference(tree, path) ?? node;
  return !(found.kind === "value" && found.value === null);
}

/** Only `+key` and `++key` add keys, also in the value of a section. */
function requireKnown(tree: MapNode, path: readonly string[], node: Node): void {
  const at = nodeAt(tree, path);
  if (at === undefined) throw new OverrideMistake(`unknown key ${oneLine(path.join("."))}${keyHelp(tree, path)}`);
  if (at.kind === "map" && node.kind === "map") {
    for (const { name, node: child } of node.entries) {
      const inner = childOf(at, name);
      if (inner === undefined || (inner.kind === "map" && child.kind === "map"))
        requireKnown(tree, [...path, name], child);
    }
  }
}

function requireIndex(tree: MapNode, path: readonly string[]): void {
  for (const [length, index] of path.entries()) {
    const list = nodeAt(tree, path.slice(0, length));
    if (list?.kind === "list" && childOf(list, index) === undefined) {
      const name = path.slice(0, length).join(".");
      throw new OverrideMistake(
        `${name} is a list of length ${list.items.length}; item ${oneLine(index)} does not exist`,
      );
    }
  }
}

function remove(tree: MapNode, { key, value }: Override): MapNode {
  const path = key.split(".");
  const node = nodeAt(tree, path);
  if (node === undefined) throw new OverrideMistake(`unknown key ${oneLine(key)}${keyHelp(tree, path)}`);
  if (nodeAt(tree, path.slice(0, -1))?.kind === "list") {
    throw new OverrideMistake("an item of a list cannot be removed; set the list as a whole");
  }
  if (value !== undefined && !isSweep(value)) {
    const wanted = elementToNode(value, node.origin);
    const found = dereference(tree, path) ?? node;
    if (!isDeepStrictEqual(plain(wanted), plain(found))) {
      throw new OverrideMistake(`${key} is ${oneLine(spelled(found), 60)}, not ${oneLine(spelled(wanted), 60)}`);
    }
  }
  return replaceAt(tree, path, undefined);
}

const spelled = (node: Node) => JSON.stringify(plain(node));

/** Suggests keys for a mistyped one, and how to add a key. */
function keyHelp(tree: MapNode, path: readonly string[]): string {
  const key = path.join(".");
  const near = nearest(key, pathsIn(tree));
  if (near.length > 0) return `; did you mean ${near.join(" or ")}?`;
  let length = path.length - 1;
  while (length > 0 && nodeAt(tree, path.slice(0, length))?.kind !== "map") length--;
  const section = nodeAt(tree, path.slice(0, length));
  const names = section?.kind === "map" ? section.entries.map(({ name }) => name) : [];
  const holder = length === 0 ? "the configuration" : path.slice(0, length).join(".");
  return `; ${holder} has ${names.length === 0 ? "no keys" : oneLine(names.join(", "), 200)}. To add a new key, write +${key}=`;
}

// Merges trees like OmegaConf: sections key by key, anything else as a whole.

const isMissing = (node: Node | undefined) => node?.kind === "value" && node.value === "???";

/**
 * Returns a new tree and does not change its arguments.
 * @throws UserError where a section meets a list
 */
function merge(under: MapNode, over: MapNode): MapNode {
  return mergeMaps(under, over, under, []);
}

function mergeMaps(under: MapNode, over: MapNode, root: MapNode, path: readonly string[]): MapNode {
  const entries = new Map(under.entries.map((entry) => [entry.name, entry]));
  for (const entry of over.entries) {
    const below = entries.get(entry.name);
    if (below === undefined) entries.set(entry.name, entry);
    else if (!isMissing(entry.node)) {
      entries.set(entry.name, mergeEntry(below, entry, root, [...path, entry.name]));
    }
  }
  return { ...under, entries: [...entries.values()] };
}

function mergeEntry(below: Entry, entry: Entry, root: MapNode, path: readonly string[]): Entry {
  const { node } = entry;
  if (node.kind === "value") return entry;
  const target = section(below.node, root, path);
  if (target.kind === "value") return entry;
  if (target.kind !== node.kind) {
    const [found, given] = node.kind === "list" ? ["a section", "a list"] : ["a list", "a section"];
    throw new UserError(
      `${positionText(entry.origin)}: ${path.join(".")} is ${found} (${positionText(target.origin)}) and cannot become ${given}`,
    );
  }
  if (target.kind === "map" && node.kind === "map") return { ...below, node: mergeMaps(target, node, root, path) };
  return entry;
}

/** Follows a reference, because values are merged into the referenced section or list, not into the reference. */
function section(node: Node, root: MapNode, path: readonly string[]): Node {
  if (node.kind !== "value" || !mayRefer(node.value)) return node;
  const target = dereference(root, path);
  return target !== undefined && target.kind !== "value" ? target : node;
}

/** Creates a tree with a single node at a path. */
function wrap(node: Node, path: readonly string[]): Node {
  return [...path]
    .reverse()
    .reduce<Node>(
      (inner, name) => ({ kind: "map", origin: node.origin, entries: [{ name, origin: node.origin, node: inner }] }),
      node,
    );
}

/**
 * Replaces the node at a path, or removes it if `node` is undefined, and creates missing sections on the path.
 * Does not merge, and does not check whether the key is known.
 */
function replaceAt(tree: MapNode, path: readonly string[], node: Node | undefined): MapNode {
  const [name, ...rest] = path as [string, ...string[]];
  const child = childOf(tree, name);
  const put = rest.length === 0 ? node : replaceIn(child, rest, node);
  const entry = tree.entries.find((one) => one.name === name);
  if (put === undefined) return { ...tree, entries: tree.entries.filter((one) => one !== entry) };
  const made: Entry = { name, origin: rest.length === 0 ? put.origin : (entry?.origin ?? put.origin), node: put };
  return {
    ...tree,
    entries: entry === undefined ? [...tree.entries, made] : tree.entries.map((one) => (one === entry ? made : one)),
  };
}

function replaceIn(child: Node | undefined, path: readonly string[], node: Node | undefined): Node | undefined {
  const [name, ...rest] = path as [string, ...string[]];
  if (child?.kind === "list" && /^\d+$/.test(name) && child.items[Number(name)] !== undefined) {
    const items = child.items.map((item, index) => {
      if (index !== Number(name)) return item;
      return (rest.length === 0 ? node : replaceIn(item, rest, node)) ?? item;
    });
    return { ...child, items };
  }
  if (child?.kind === "map") return replaceAt(child, path, node);
  if (node === undefined) return child;
  return replaceAt({ kind: "map", origin: node.origin, entries: [] }, path, node);
}
