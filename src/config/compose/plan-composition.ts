/** Prepares the request to Hydra's composition: backend, files and overrides. */

import { configKeys, configSections } from "../describe.ts";
import type { HydraRequest } from "../hydra/compose-hydra.ts";
import { isMistake, type Override, parseOverride } from "../hydra/parse-override.ts";
import { type Backend, backends } from "../schema/about.ts";
import type { ConfigInput } from "../schema.ts";
import { type MapNode, type Mistake, nodeFromObject, plain } from "../tree/node.ts";
import type { Origin } from "../tree/origin.ts";
import { shippedFolder } from "../tree/shipped.ts";
import { nodeOf, putNode } from "../tree/tree.ts";
import { backendSettings } from "./backends.ts";

export interface ConfigRequest {
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

export interface CompositionPlan {
  backend: Backend;
  request: HydraRequest;
  overrides: (Override | Mistake)[];
  /** Keys deleted by `~key=value`. */
  deleted: ReadonlyMap<string, Origin>;
  /** Maps rewritten overrides to their original text. */
  original: ReadonlyMap<string, string>;
}

export function planComposition(sources: ConfigRequest, layers: readonly MapNode[]): CompositionPlan {
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
        backendSettings[backend].ownTree?.() ?? [],
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
