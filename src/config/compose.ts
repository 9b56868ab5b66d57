/**
 * Several layers to one checked configuration that knows where each value came from:
 * schema defaults < the backend's defaults < the script's config < YAML files < overrides.
 */
import { fileURLToPath } from "node:url";
import { UserError } from "../errors.ts";
import { type Assignment, checkNode, checkValue } from "./check.ts";
import { configKeys, configSections } from "./describe.ts";
import { interpolate, type Setting } from "./interpolate.ts";
import { type Mistake, nodeFromObject } from "./node.ts";
import { type Origin, oneLine } from "./origin.ts";
import { parseOverride } from "./parse-override.ts";
import { positionText, readYamlFile } from "./read-yaml.ts";
import { type Config, type ConfigInput, configSchema } from "./schema.ts";
import { didYouMean } from "./suggest.ts";

export interface ConfigSources {
  /** YAML files, later ones win. */
  files?: readonly string[];
  /** The script's own config. */
  input?: ConfigInput;
  /** `a.b.c=value`, `~a.b.c`; later ones win. */
  overrides?: readonly string[];
}

export interface ComposedConfig {
  config: Config;
  /** For every key of the schema, e.g. `origins.get("training.learning_rate")`. */
  origins: ReadonlyMap<string, Origin>;
}

type Operation = Assignment | { reset: string };

/**
 * @example
 * const { config, origins } = composeConfig({ files: ["gpu.yaml"], overrides: ["training.learning_rate=1e-4"] });
 * @throws UserError that lists every mistake of every layer with its place
 */
export function composeConfig(sources: ConfigSources = {}): ComposedConfig {
  const mistakes: Mistake[] = [];
  const operations = [
    ...checkNode(nodeFromObject(sources.input ?? {}, { kind: "script" }), mistakes),
    ...(sources.files ?? []).flatMap((file) => fileAssignments(file, "file", mistakes)),
    ...(sources.overrides ?? []).flatMap((text) => overrideOperations(text, mistakes)),
  ];
  const defaults = new Map<string, Setting>();
  for (const { key, default: value } of configKeys.values()) defaults.set(key, { value, origin: { kind: "default" } });
  const backend = apply(defaults, operations).get("rllm.backend")!.value;
  const base = apply(defaults, fileAssignments(backendFile(backend), "backend", mistakes));
  // Mistaken values are left out, so references to them would only repeat the complaint.
  if (mistakes.length > 0) throw mistakesError(mistakes);

  const settings = interpolate(apply(base, operations), mistakes);
  for (const [key, setting] of settings) {
    const known = configKeys.get(key)!;
    // A text key that refers to a number takes it as text.
    if (known.takesText && typeof setting.value === "number") setting.value = String(setting.value);
    const message = setting.origin.kind === "default" ? undefined : checkValue(known, setting.value);
    if (message !== undefined) mistakes.push({ where: positionText(setting.origin), message });
  }
  if (mistakes.length > 0) throw mistakesError(mistakes);
  return {
    config: configSchema.parse(toTree(settings)),
    origins: new Map([...settings].map(([key, { origin }]) => [key, origin])),
  };
}

/** `~key` restores what `base` says; assignments replace it. */
function apply(base: ReadonlyMap<string, Setting>, operations: readonly Operation[]): Map<string, Setting> {
  const settings = new Map(base);
  for (const operation of operations) {
    if ("key" in operation) settings.set(operation.key, { value: operation.value, origin: operation.origin });
    else {
      const { reset } = operation;
      for (const [key, setting] of base) if (key === reset || key.startsWith(`${reset}.`)) settings.set(key, setting);
    }
  }
  return settings;
}

/** The defaults of an engine lie in the package, two folders above this file in source and in build alike. */
function backendFile(backend: unknown): string {
  return fileURLToPath(new URL(`../../config/rllm/backend/${String(backend)}.yaml`, import.meta.url));
}

function fileAssignments(file: string, kind: "file" | "backend", mistakes: Mistake[]): Assignment[] {
  const read = readYamlFile(file, kind);
  mistakes.push(...read.mistakes);
  return read.node === undefined ? [] : checkNode(read.node, mistakes);
}

function overrideOperations(text: string, mistakes: Mistake[]): Operation[] {
  const override = parseOverride(text);
  if (override.kind === "set") return checkNode(override.node, mistakes);
  if (override.kind === "mistake") mistakes.push(override.mistake);
  else if (configKeys.has(override.key) || configSections.has(override.key)) return [{ reset: override.key }];
  else
    mistakes.push({
      where: oneLine(text),
      message: `unknown key ${oneLine(override.key)}${didYouMean(override.key, { keys: true, sections: true })}`,
    });
  return [];
}

function toTree(settings: ReadonlyMap<string, Setting>): Record<string, unknown> {
  const tree: Record<string, unknown> = {};
  for (const [key, { value }] of settings) {
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

const mostShown = 30;

function mistakesError(mistakes: readonly Mistake[]): UserError {
  const lines = mistakes.map(({ where, message }) => `${where}: ${message}`);
  const shown = lines.slice(0, mostShown);
  if (lines.length > mostShown) shown.push(`... and ${lines.length - mostShown} more`);
  const message =
    lines.length === 1 ? lines[0]! : `${lines.length} mistakes in the configuration:\n  ${shown.join("\n  ")}`;
  return new UserError(message, { hint: "hone config --explain lists every key with its type, default and meaning" });
}
