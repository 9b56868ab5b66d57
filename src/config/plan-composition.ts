/** What Hydra is asked to compose: which backend, which files, which overrides. */
import { join } from "node:path";
import { configKeys, configSections } from "./describe.ts";
import { type HydraRequest, isMistake, type Override, parseOverride } from "./hydra/index.ts";
import { searchPath } from "./hydra/search-path.ts";
import { type MapNode, type Mistake, plain } from "./node.ts";
import type { Origin } from "./origin.ts";
import { type Backend, backends } from "./schema/about.ts";
import type { ConfigInput } from "./schema.ts";
import { shippedFolder, verlPackage } from "./shipped.ts";
import { nodeOf } from "./tree.ts";

export interface ConfigRequest {
  /** What a front door does by itself: weaker than the script's own config. */
  presets?: MapNode;
  /** YAML files, later ones win. */
  files?: readonly string[];
  /** The script's own config. */
  input?: ConfigInput;
  /** What a front door's flags say: stronger than files, weaker than overrides. */
  flags?: MapNode;
  /** Hydra's overrides, e.g. `a.b.c=value`, `rllm/backend=tinker`; later ones win. */
  overrides?: readonly string[];
  /** A folder searched before Hone's own. */
  configPath?: string;
  /** Folders searched after that one and before Hone's own. */
  configDirs?: readonly string[];
  /** The configuration composition begins with, instead of `unified`. */
  configName?: string;
}

export interface CompositionPlan {
  backend: Backend;
  request: HydraRequest;
  overrides: (Override | Mistake)[];
  /** Keys deleted by `~key=value`. */
  deleted: ReadonlyMap<string, Origin>;
  /** Overrides that were rewritten, back to how they were typed. */
  original: ReadonlyMap<string, string>;
  notes: string[];
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
  const verlInstalled = backend === "verl" && searchPath([`pkg://${verlPackage}`]).isGroup("actor");
  const { texts, original } = lenient(typed, overrides);
  // The group brings the backend's file; the value is what it is called, whatever a lower layer says.
  if (group === undefined) texts.unshift(`rllm/backend=${backend}`);
  else if (set === undefined && layers.some((layer) => backendOf(layer) !== undefined))
    texts.push(`rllm.backend=${backend}`);
  return {
    backend,
    request: {
      searchPath: [
        ...(sources.configPath === undefined ? [] : [sources.configPath]),
        ...(sources.configDirs ?? []),
        shippedFolder,
        ...(backend === "verl" ? [verlInstalled ? `pkg://${verlPackage}` : join(shippedFolder, "verl")] : []),
      ],
      configName: sources.configName ?? "unified",
      overrides: texts,
    },
    overrides,
    deleted: new Map(
      parsed
        .filter(({ kind, value }) => kind === "delete" && value !== undefined)
        .map(({ key, text }) => [key, { kind: "override", text }]),
    ),
    original,
    notes:
      backend === "verl" && !verlInstalled
        ? [
            "the Python package verl is not installed: of its own keys only those in config/verl are known (pip install --no-deps verl==0.8.0 brings the others)",
          ]
        : [],
  };
}

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
 * Every key of the schema exists, so that `+key=` may set it like `key=`, and `key=` works again after `~key`. Hydra,
 * which knows only the composed tree, is told `++key=`.
 */
function lenient(typed: readonly string[], overrides: readonly (Override | Mistake)[]) {
  const original = new Map<string, string>();
  const deletes = overrides.some((one) => !isMistake(one) && one.kind === "delete");
  const texts = typed.map((text, index) => {
    const one = overrides[index]!;
    if (isMistake(one) || !(configKeys.has(one.key) || configSections.has(one.key))) return text;
    if (!(one.kind === "add" || (one.kind === "change" && deletes))) return text;
    const forced = `++${text.replace(/^\+/, "")}`;
    original.set(forced, text);
    return forced;
  });
  return { texts, original };
}
