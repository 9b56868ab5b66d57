/**
 * Hydra's composition: combines a primary configuration, the files in its defaults list and command-line overrides
 * into one tree with the origin of every value. Independent of the schema.
 */

import { UserError } from "../../errors.ts";
import { nearest } from "../../nearest.ts";
import { type Mistake, mistakesError } from "../mistakes.ts";
import { childOf, type MapNode, type Node, nodeAt, plain, type ValueNode } from "../tree/node.ts";
import { oneLine } from "../tree/origin.ts";
import { positionText } from "../yaml/read-yaml.ts";
import { applyOverride } from "./apply-override.ts";
import { type DefaultsList, defaultsList } from "./defaults-list.ts";
import { configLoader, type LoadConfig } from "./load-config.ts";
import { merge, wrap } from "./merge.ts";
import { isMistake, type Override, parseOverride } from "./parse-override.ts";
import { select } from "./resolve.ts";
import type { ResolverSettings } from "./resolvers.ts";
import { type SearchPath, searchPath } from "./search-path.ts";
import { elementText, elementToNode, isSweep, type Sweep } from "./value.ts";

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
