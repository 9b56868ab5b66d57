/**
 * Hydra's composition: combines a primary configuration, the files in its defaults list and command-line overrides
 * into one tree with the origin of every value. Independent of the schema.
 */
import { UserError } from "../../errors.ts";
import { mistakesError } from "../compose/mistakes.ts";
import { childOf, type MapNode, type Mistake, nodeAt, plain } from "../tree/node.ts";
import { oneLine } from "../tree/origin.ts";
import { positionText } from "../yaml/read-yaml.ts";
import { applyOverride } from "./apply-override.ts";
import { type DefaultsList, defaultsList } from "./defaults-list.ts";
import { type HydraSettings, hasNoMeaning, readHydraSettings } from "./hydra-settings.ts";
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
