/**
 * Composes several layers into one checked configuration with the origin of each value:
 * schema defaults < config/*.yaml < a front end's presets < the script's config < YAML files < its flags < overrides
 * in Hydra's syntax. Then keys with two names are synchronized, references are resolved, and every value is checked.
 */
import { checkLayer, checkOverrides, checkValue, keyValue, showValue } from "./check.ts";
import { composeHydra, type HydraComposition, type HydraRequest } from "./hydra/compose.ts";
import { isMistake, type Override, parseOverride } from "./hydra/overrides.ts";
import { resolveTree } from "./hydra/resolve.ts";
import { type Backend, backendFacts, backends } from "./schema/backends.ts";
import { type Config, type ConfigInput, configKeys, configSections, openSectionOf } from "./schema.ts";
import { maskLiterals, maskOverride, mistakesError, withoutSecrets } from "./secrets.ts";
import { applyRules, forwarded, resumeFromTinkerId, sharedRules } from "./synonyms.ts";
import {
  type ConfigWarning,
  copyTree,
  layerOf,
  leavesOf,
  type MapNode,
  type Mistake,
  nodeFromObject,
  nodeOf,
  type Origin,
  plain,
  putNode,
  shippedFolder,
  valueAt,
} from "./tree.ts";
import { ownTrees } from "./verl-keys.ts";
import { positionText, readYamlFile } from "./yaml.ts";

export interface ConfigSources {
  /** Defaults of a command-line front end (`hone lightrft`, ...); lower priority than the script's config. */
  presets?: MapNode;
  /** YAML files; later files override earlier ones. */
  files?: readonly string[];
  /** The script's own config. */
  input?: ConfigInput;
  /** Settings from the flags of a command-line front end: higher priority than files, lower than overrides. */
  flags?: MapNode;
  /** Hydra overrides, e.g. `a.b.c=value`, `rllm/backend=tinker`; later ones override earlier ones. */
  overrides?: readonly string[];
  /** A folder searched before Hone's own. */
  configPath?: string;
  /** Folders searched after `configPath` and before Hone's own. */
  configDirs?: readonly string[];
  /** The primary configuration; default `unified`. */
  configName?: string;
}

export interface ComposedConfig {
  /** The settings that Hone reads, with all defaults filled in. */
  config: Config;
  /** The whole tree, including the chosen backend's own sections. */
  tree: Record<string, unknown>;
  /** The same tree with references unresolved and secrets masked. */
  unresolved: Record<string, unknown>;
  /**
   * The tree for storing and showing: secrets masked, values from the environment as references, other text escaped so
   * that it reads back unchanged.
   */
  stored: Record<string, unknown>;
  /** The part of the stored tree that Hone reads. */
  storedConfig: Record<string, unknown>;
  /** The replacement of each masked value in the stored tree, by path. */
  masks: ReadonlyMap<string, string>;
  /** The origin of every value in the tree by path, e.g. `origins.get("training.learning_rate")`. */
  origins: ReadonlyMap<string, Origin>;
  /** Warnings about related keys, in the order in which the keys were processed. */
  warnings: readonly ConfigWarning[];
  /** Keys whose value is still `???`; they must be set before a run. */
  missing: readonly string[];
  /** Notes for the user about the composition as a whole. */
  notes: readonly string[];
}

/** Nothing for files that do not exist: their message says all. */
const hintFor = (mistakes: readonly Mistake[]) =>
  mistakes.every(({ message }) => message === "file not found")
    ? undefined
    : "hone config --explain lists every key with its type, default and meaning";

/**
 * @example
 * const { config, origins } = composeConfig({ files: ["gpu.yaml"], overrides: ["training.learning_rate=1e-4"] });
 * @throws UserError listing every mistake of every layer with its location
 */
export function composeConfig(sources: ConfigSources = {}): ComposedConfig {
  const mistakes: Mistake[] = [];
  const { plan, composed } = compose(sources, mistakes);
  const tree = copyTree(composed.tree);
  takeRunFolder(tree, composed.hydra, mistakes);
  const ownTree = ownTrees[plan.backend];
  const warnings = applyRules(tree, rulesFor(plan.backend), plan.deleted, composed.resolvers);
  const environment = recordReads(process.env);
  const resolved = resolveTree(tree, { ...composed.resolvers, environment: environment.values });
  const { settings, origins, missing } = checkResolved(resolved.tree, plan.original, mistakes);
  restoreDeleted(settings, plan);
  if (mistakes.length > 0) throw mistakesError(mistakes, hintFor(mistakes));
  const { tree: masked, masks } = withoutSecrets(resolved.tree, tree, environment.read);
  const stored = ownTree?.withoutDefaults(masked, origins) ?? masked;
  return {
    // Every key is present and has passed its own check, so parsing the whole again is unnecessary.
    config: toTree(settings) as unknown as Config,
    tree: plain(resolved.tree) as Record<string, unknown>,
    unresolved: maskLiterals(plain(tree) as Record<string, unknown>),
    stored,
    storedConfig: storedSettings(settings, stored, masks),
    masks,
    origins,
    warnings,
    missing,
    notes: resolved.warnings.map(({ where, message }) => `${where}: ${message}`),
  };
}

/** Rules about keys that set each other, in the order in which they are applied. */
const rulesFor = (backend: Backend) => [
  resumeFromTinkerId,
  ...(ownTrees[backend]?.rules ?? []),
  ...sharedRules,
  ...(backendFacts[backend].forwarded ?? []).map(forwarded),
];

/**
 * Composes only Hydra's own settings, for multiruns. Keys and groups are checked, values are not.
 * @throws UserError like `composeConfig`
 */
export function composeHydraSettings(sources: ConfigSources): HydraComposition["hydra"] {
  return compose(sources, []).composed.hydra;
}

function compose(sources: ConfigSources, mistakes: Mistake[]): { plan: CompositionPlan; composed: HydraComposition } {
  const layers = layersOf(sources, mistakes);
  const plan = planComposition(sources, layers);
  for (const layer of layers) checkLayer(layer, plan.backend, mistakes);
  checkOverrides(plan.overrides, plan.backend, mistakes);
  if (mistakes.length > 0) throw mistakesError(mistakes, hintFor(mistakes));

  return { plan, composed: composeHydra({ ...plan.request, layers }) };
}

interface CompositionPlan {
  backend: Backend;
  request: HydraRequest;
  overrides: (Override | Mistake)[];
  /** Keys deleted by `~key=value`. */
  deleted: ReadonlyMap<string, Origin>;
  /** Maps rewritten overrides to their original text. */
  original: ReadonlyMap<string, string>;
}

/** Prepares the request to Hydra's composition: backend, files and overrides. */
function planComposition(sources: ConfigSources, layers: readonly MapNode[]): CompositionPlan {
  const typed = sources.overrides ?? [];
  const overrides = typed.map(parseOverride);
  const parsed = overrides.filter((one): one is Override => !isMistake(one));
  const group = parsed.findLast(({ key, kind }) => key === "rllm/backend" && kind !== "delete");
  const set = parsed.findLast(({ key }) => key === "rllm.backend");
  const named = [textOf(group), textOf(set), ...[...layers].reverse().map(backendOf)].find(
    (name) => name !== undefined,
  );
  const backend = backends.find((one) => one === named) ?? "local";
  const { texts, original } = rewriteKnownKeys(typed, overrides);
  // The group loads the backend's file; rllm.backend must match it, regardless of lower layers.
  if (group === undefined) texts.unshift(`rllm/backend=${backend}`);
  else if (set === undefined && layers.some((layer) => backendOf(layer) !== undefined))
    texts.push(`rllm.backend=${backend}`);
  return {
    backend,
    request: {
      searchPath: [
        sources.configPath ?? [],
        sources.configDirs ?? [],
        shippedFolder,
        ownTrees[backend]?.folder() ?? [],
      ].flat(),
      configName: sources.configName ?? "unified",
      base: defaultsTree(),
      isFree,
      overrides: texts,
    },
    overrides,
    deleted: new Map(
      parsed
        .filter(({ kind, value }) => kind === "delete" && value !== undefined)
        .map(({ key, text }) => [key, { kind: "override", text }]),
    ),
    original,
  };
}

let cachedDefaults: MapNode | undefined;

/** The schema's defaults as a tree, the lowest layer of the composition. Not to be changed. */
function defaultsTree(): MapNode {
  if (cachedDefaults !== undefined) return cachedDefaults;
  const origin = { kind: "default" } as const;
  const tree: MapNode = { kind: "map", origin, entries: [] };
  for (const { key, default: value, about } of configKeys.values()) {
    putNode(tree, key, nodeFromObject(about.written ?? value, origin));
  }
  cachedDefaults = tree;
  return tree;
}

/** Keys that contain the user's own keys, such as `rllm.algorithm.loss_fn_map`. */
const freeKeys = [...configKeys.values()]
  .filter((known) => typeof known.default === "object" && known.default !== null && !Array.isArray(known.default))
  .map(({ key }) => key);

const isFree = (key: string) => freeKeys.some((free) => key === free || key.startsWith(`${free}.`));

function textOf(override: Override | undefined): string | undefined {
  const value = override?.value;
  return value?.type === "text" ? value.value : undefined;
}

function backendOf(layer: MapNode): string | undefined {
  const node = nodeOf(layer, "rllm.backend");
  const value = node === undefined ? undefined : plain(node);
  return typeof value === "string" ? value : undefined;
}

/**
 * Every key of the schema exists, so `+key=` is allowed like `key=`, and `key=` works again after `~key`. Hydra knows
 * only the composed tree, so such overrides are rewritten to `++key=`.
 */
function rewriteKnownKeys(typed: readonly string[], overrides: readonly (Override | Mistake)[]) {
  const original = new Map<string, string>();
  const deletes = overrides.some((one) => !isMistake(one) && one.kind === "delete");
  const texts = typed.map((text, index) => {
    const one = overrides[index];
    if (one === undefined || isMistake(one) || !(configKeys.has(one.key) || configSections.has(one.key))) return text;
    if (!(one.kind === "add" || (one.kind === "change" && deletes))) return text;
    const forced = `++${text.replace(/^\+/, "")}`;
    original.set(forced, text);
    return forced;
  });
  return { texts, original };
}

/** From the lowest priority to the highest. */
function layersOf({ presets, input, files = [], flags }: ConfigSources, mistakes: Mistake[]): MapNode[] {
  const script = nodeFromObject(input ?? {}, { kind: "script" });
  const layers = [presets, script, ...files.flatMap((file) => readLayer(file, mistakes)), flags];
  return layers.filter((layer) => layer?.kind === "map");
}

/** Wraps environment variables and records the values that are read. */
function recordReads(variables: NodeJS.ProcessEnv) {
  const read = new Set<string>();
  const values = new Proxy(variables, {
    get(target, name) {
      const value = target[String(name)];
      if (value !== undefined) read.add(value);
      return value;
    },
  });
  return { values, read };
}

function storedSettings(
  settings: ReadonlyMap<string, unknown>,
  stored: Record<string, unknown>,
  masks: ReadonlyMap<string, string>,
): Record<string, unknown> {
  const written = new Map<string, unknown>();
  for (const [key, value] of settings) {
    // A section that is a single reference is stored as that reference.
    const at = [...masks.keys()].find((path) => key === path || key.startsWith(`${path}.`)) ?? key;
    written.set(at, masks.get(at) ?? valueAt(stored, key) ?? value);
  }
  return toTree(written);
}

/** Applies `hydra.run.dir`, Hydra's name for the run folder, unless `rllm.trainer.run_dir` is set. */
function takeRunFolder(tree: MapNode, { runDir, multirun }: HydraComposition["hydra"], mistakes: Mistake[]): void {
  if (multirun)
    mistakes.push({ where: "hydra.mode=MULTIRUN", message: "start several runs with hone train -m instead" });
  const own = nodeOf(tree, "rllm.trainer.run_dir");
  if (runDir !== undefined && own?.kind === "value" && own.value === null) {
    putNode(tree, "rllm.trainer.run_dir", runDir);
  }
}

function readLayer(file: string, mistakes: Mistake[]): MapNode[] {
  const { node, mistakes: found } = readYamlFile(file);
  mistakes.push(...found);
  if (node === undefined || (node.kind === "value" && node.value === null)) return [];
  if (node.kind === "map") return [withoutEmptySections(node)];
  const message = `a configuration must be a section with keys, not ${showValue(plain(node))}`;
  mistakes.push({ where: positionText(node.origin), message });
  return [];
}

/** Drops sections whose keys are all commented out; they read as null, which would replace the section. */
function withoutEmptySections(section: MapNode, prefix = ""): MapNode {
  const entries = section.entries.flatMap((entry) => {
    const path = prefix + entry.name;
    if (!configSections.has(path)) return [entry];
    if (entry.node.kind === "value" && entry.node.value === null) return [];
    return [entry.node.kind === "map" ? { ...entry, node: withoutEmptySections(entry.node, `${path}.`) } : entry];
  });
  return { ...section, entries };
}

interface Checked {
  /** Values of the schema's keys. */
  settings: Map<string, unknown>;
  origins: Map<string, Origin>;
  missing: string[];
}

/** Whether the value at a path is handled as a whole, even if it contains keys. */
const isWhole = (path: string) => configKeys.has(path) || openSectionOf(path) !== undefined;

const isShipped = (origin: Origin) => origin.kind !== "synced" && layerOf(origin) === 0;

/** @param original maps overrides that were rewritten for Hydra to their original text */
function checkResolved(tree: MapNode, original: ReadonlyMap<string, string>, mistakes: Mistake[]): Checked {
  const checked: Checked = { settings: new Map(), origins: new Map(), missing: [] };
  for (const { path, node, origin: found } of leavesOf(tree, isWhole)) {
    const origin = asTyped(found, original);
    checked.origins.set(path, origin);
    const known = configKeys.get(path);
    if (node.kind === "value" && node.value === "???") {
      checked.missing.push(path);
      if (known !== undefined) mistakes.push({ where: positionText(origin), message: `${path} is ???; set a value` });
      continue;
    }
    if (known === undefined) {
      if (openSectionOf(path) !== undefined) checked.settings.set(path, plain(node));
      continue;
    }
    // The tests check the shipped defaults.
    const shipped = isShipped(origin);
    const value = shipped ? plain(node) : keyValue(known, node);
    const message = shipped ? undefined : checkValue(known, value);
    if (message !== undefined) mistakes.push({ where: positionText(origin), message });
    if (node.kind === "value" && value !== node.value) putNode(tree, path, { kind: "value", origin: found, value });
    checked.settings.set(path, value);
  }
  return checked;
}

/** Gives deleted keys the backend's shipped default: they are missing in the tree, but Hone reads them. */
function restoreDeleted(settings: Map<string, unknown>, { backend, request }: CompositionPlan): void {
  const deleted = [...configKeys.keys()].filter((key) => !settings.has(key));
  if (deleted.length === 0) return;
  const shipped = composeHydra({ ...request, overrides: [`rllm/backend=${backend}`] });
  const { tree } = resolveTree(shipped.tree, shipped.resolvers);
  for (const key of deleted) {
    const node = nodeOf(tree, key);
    if (node !== undefined) settings.set(key, plain(node));
  }
}

function asTyped(origin: Origin, original: ReadonlyMap<string, string>): Origin {
  if (origin.kind === "override") return { ...origin, text: maskOverride(original.get(origin.text) ?? origin.text) };
  if (origin.kind === "synced") return { ...origin, of: asTyped(origin.of, original) };
  if (origin.kind === "reference") {
    const from = origin.from && asTyped(origin.from, original);
    const at = asTyped(origin.at, original);
    return from === undefined ? { ...origin, at } : { ...origin, at, from };
  }
  return origin;
}

function toTree(settings: ReadonlyMap<string, unknown>): Record<string, unknown> {
  const tree: Record<string, unknown> = {};
  for (const [key, value] of settings) {
    const names = key.split(".");
    let section = tree;
    for (const name of names.slice(0, -1)) {
      section[name] ??= {};
      section = section[name] as Record<string, unknown>;
    }
    section[names.at(-1)!] = value;
  }
  return tree;
}
