/**
 * Hydra's composition: combines a primary configuration, the files in its defaults list and command-line overrides
 * into one tree with the origin of every value. Independent of the schema.
 */
import { UserError } from "../../errors.ts";
import { mistakesError } from "../compose/mistakes.ts";
import { childOf, type MapNode, type Mistake, type Node, nodeAt, plain } from "../tree/node.ts";
import { oneLine } from "../tree/origin.ts";
import { positionText } from "../yaml/read-yaml.ts";
import { applyOverride } from "./apply-override.ts";
import { type DefaultsList, defaultsList } from "./defaults-list.ts";
import { type HydraSettings, hasNoMeaning, readHydraSettings } from "./hydra-settings.ts";
import { configLoader, type LoadConfig } from "./load-config.ts";
import { isMissing, merge, wrap } from "./merge.ts";
import { isMistake, type Override, parseOverride } from "./parse-override.ts";
import { select } from "./resolve.ts";
import type { ResolverSettings } from "./resolvers.ts";
import { type SearchPath, searchPath } from "./search-path.ts";
import { elementText, elementToNode, isSweep, type Sweep } from "./value.ts";

export interface HydraRequest {
  /** Folders (paths, `file://...`, `pkg://python.package`), the first that holds a file wins. */
  searchPath: readonly string[];
  /** The primary config's name, e.g. `unified`; without it the composition starts empty. */
  configName?: string;
  /** Overrides as typed on the command line. */
  overrides?: readonly string[];
  /** Merged beneath the files, e.g. a schema's defaults. */
  base?: MapNode;
  /** Keys whose value is a section of any keys: an override may make keys in it without a `+`. */
  isFree?: (key: string) => boolean;
  /** Merged over the files and beneath the overrides, later ones win: a script's config, further YAML files. */
  layers?: readonly MapNode[];
}

export interface HydraComposition {
  /** References (`${...}`) and `???` as they were written; `resolveTree` replaces them. Without the `hydra` section. */
  tree: MapNode;
  /** Every override in order, those of config groups included. */
  overrides: Override[];
  /** The option of each config group, e.g. `rllm/backend` -> `verl`. */
  choices: ReadonlyMap<string, string | null>;
  /** The settings that `resolveTree` and `select` need for this composition. */
  resolvers: Pick<ResolverSettings, "choices" | "configName">;
  hydra: HydraSettings;
  /** With the entries of `hydra.searchpath`. */
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
    mistakes.push({ where: positionText(resolved.origin), message: "hydra is a section of settings" });
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

/** `hydra.searchpath=[...]` says where the other overrides' groups are, so it goes first. */
function takeSearchPath(overrides: readonly Override[]): [Override | undefined, Override[]] {
  const isSearchPath = ({ key }: Override) => key === "hydra.searchpath";
  return [overrides.findLast(isSearchPath), overrides.filter((override) => !isSearchPath(override))];
}

/** The command line's entries, or else the primary configuration's. */
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
    `${positionText(given.origin)}: hydra.searchpath is a list of text, e.g. [file://conf,pkg://verl.trainer.config]`,
  );
}

/** A file's values in the section given by its package. */
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

/**
 * Checks that every required key (`???`) is set.
 * @throws UserError listing all missing keys and their origins
 */
export function requireGiven(tree: MapNode): void {
  // What refers to a missing key is settled with it.
  const missing = missingKeys(tree, "").filter(({ node }) => node.origin.kind !== "reference");
  if (missing.length === 0) return;
  const lines = missing.map(({ key, node }) => `${key} (${positionText(node.origin)})`);
  const names = lines.length === 1 ? lines[0] : `\n  ${lines.join("\n  ")}`;
  throw new UserError(
    `${lines.length === 1 ? "a value must be given for " : `${lines.length} values must be given:`}${names}`,
    {
      hint: `Add to the command line: ${missing
        .map(({ key }) => `${key}=...`)
        .slice(0, 5)
        .join(" ")}`,
    },
  );
}

/** The keys whose value is `???`. */
function missingKeys(node: Node, prefix: string): { key: string; node: Node }[] {
  if (isMissing(node)) return [{ key: prefix, node }];
  const join = (name: string) => (prefix === "" ? name : `${prefix}.${name}`);
  if (node.kind === "map") return node.entries.flatMap(({ name, node: child }) => missingKeys(child, join(name)));
  if (node.kind === "list") return node.items.flatMap((item, index) => missingKeys(item, join(String(index))));
  return [];
}
