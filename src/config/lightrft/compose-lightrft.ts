/** Composes the configuration from a LightRFT command line. */

import { type ComposedConfig, type ConfigSources, composeConfig } from "../compose.ts";
import { type Mistake, mistakesError } from "../mistakes.ts";
import { type MapNode, nodeFromObject } from "../tree/node.ts";
import type { Origin } from "../tree/origin.ts";
import { putNode } from "../tree/tree.ts";
import { type ConfigWarning, warningLine } from "../warnings.ts";
import { type CommandLine, flagTable } from "./flags.ts";
import { type ParsedFlags, parseFlags } from "./parse-flags.ts";

interface LightRftSettings {
  /** Keys set by given flags. */
  flags: MapNode;
  /** LightRFT's defaults for all other flags. */
  presets: MapNode;
  warnings: ConfigWarning[];
}

export interface LightRftCommand {
  settings: LightRftSettings;
  /** The experiment's script, if given. */
  script: string | undefined;
  /** Overrides `key=value`, which win over the flags. */
  overrides: string[];
}

const hint = "hone lightrft --help lists every flag with its type, default and meaning";

/** Keys without a flag: key, value, reason. */
const fixed: readonly (readonly [string, unknown, string])[] = [
  ["rllm.backend", "local", "LightRFT trains on local hardware"],
  ["rllm.algorithm.lr_schedule", "cosine", "LightRFT's schedule"],
  ["rllm.algorithm.min_lr_ratio", 0.1, "LightRFT's schedule"],
  ["rllm.algorithm.estimator_preset", "lightrft", "LightRFT's constants"],
  ["rllm.algorithm.loss_agg_mode", "seq-mean-token-mean", "LightRFT averages the means of the sequences"],
];

/**
 * @param environment its `WORLD_SIZE` may set the number of processes
 * @param strict treats warnings as mistakes
 * @throws UserError listing every mistake
 */
export function readLightRft(
  args: readonly string[],
  { environment = process.env, strict = false }: { environment?: NodeJS.ProcessEnv; strict?: boolean } = {},
): LightRftCommand {
  const mistakes: Mistake[] = [];
  const words: string[] = [];
  const parsed = parseFlags(args, words, mistakes);
  const overrides = words.filter((word) => word.includes("=") || word.startsWith("~"));
  const [script, ...others] = words.filter((word) => !overrides.includes(word));
  for (const word of others) mistakes.push({ where: word, message: "is neither a flag nor key=value" });

  const world = givenWorld(environment, overrides, mistakes) ?? smallestWorld(parsed);
  if (mistakes.length > 0) throw mistakesError(mistakes, hint);
  const settings = toSettings(parsed, world, mistakes);
  if (mistakes.length > 0) throw mistakesError(mistakes, hint);
  if (strict && settings.warnings.length > 0) {
    throw mistakesError(
      settings.warnings.map((warning) => ({ where: "--strict", message: warningLine(warning) })),
      "change the flags to avoid the warnings, or remove --strict",
    );
  }
  return { settings, script, overrides };
}

/** @throws UserError listing every mistake */
export function composeLightRft({ settings, overrides }: LightRftCommand, sources: ConfigSources = {}): ComposedConfig {
  const { warnings, ...layers } = settings;
  const composed = composeConfig({ ...sources, ...layers, overrides: [...(sources.overrides ?? []), ...overrides] });
  return { ...composed, warnings: [...warnings, ...composed.warnings] };
}

interface World {
  /** Number of processes, one per GPU. */
  processes: number;
  /** Where the number was set: `"WORLD_SIZE"`, `"local.processes"`; undefined if it was not set. */
  source: string | undefined;
}

function givenWorld(
  environment: NodeJS.ProcessEnv,
  overrides: readonly string[],
  mistakes: Mistake[],
): World | undefined {
  const override = overrides.findLast((text) => text.startsWith("local.processes="));
  const [source, text] =
    override === undefined ? ["WORLD_SIZE", environment.WORLD_SIZE] : ["local.processes", override.split("=")[1]];
  if (text === undefined || text === "") return undefined;
  const processes = Number(text);
  if (Number.isInteger(processes) && processes >= 1) return { processes, source };
  mistakes.push({ where: `${source}=${text}`, message: "is not a number of processes" });
  return undefined;
}

/** LightRFT has no flag for the number of processes, so it is the minimum that the flags allow. */
function smallestWorld({ values: { engine_tp_size, sp_size } }: ParsedFlags): World {
  return { processes: leastCommonMultiple(engine_tp_size, sp_size), source: undefined };
}

function leastCommonMultiple(left: number, right: number): number {
  let [divisor, rest] = [left, right];
  while (rest !== 0) [divisor, rest] = [rest, divisor % rest];
  return (left / divisor) * right;
}

/** Applies the table of flags, in its order. */
function toSettings({ values, given }: ParsedFlags, world: World, mistakes: Mistake[]): LightRftSettings {
  const [flags, presets] = [emptyLayer(), emptyLayer()];
  const warnings: ConfigWarning[] = [];
  const { processes, source } = world;
  const line: CommandLine = {
    isGiven: (name) => given.has(name),
    processes,
    processesText: source === undefined ? `${processes} processes` : `${processes} processes (${source})`,
  };
  const preset = (key: string, value: unknown, text: string) => put(presets, key, value, { kind: "preset", text });

  for (const [key, value, why] of fixed) preset(key, value, why);
  for (const [name, flag] of flagTable) {
    const text = given.get(name);
    const refusal = flag.refuses?.(values, line);
    if (refusal) mistakes.push({ where: text ?? `--${name} ${values[name]}`, message: refusal });
    const warning = flag.warns?.(values, line);
    if (warning) warnings.push(warning);
    const unused = typeof flag.noEffect === "function" ? flag.noEffect(values) : flag.noEffect;
    if (unused) {
      const message = `${text} has no effect: ${unused}`;
      if (text !== undefined) warnings.push({ category: "unsupported", paths: [`--${name}`], text: message });
      continue;
    }
    if (text === undefined && flag.onlyIfGiven) continue;
    const { sets = {} } = flag;
    const keys = typeof sets === "string" ? { [sets]: () => values[name] } : sets;
    for (const [key, toValue] of Object.entries(keys)) {
      const value = toValue(values, line);
      if (value === undefined) continue;
      if (text === undefined) preset(key, value, flag.presetBecause ?? `LightRFT's default of --${name}`);
      else put(flags, key, value, { kind: "flag", text });
    }
  }
  if (source === undefined) preset("local.processes", processes, "the minimum that the flags allow");
  else if (source === "WORLD_SIZE") {
    put(flags, "local.processes", processes, { kind: "flag", text: `WORLD_SIZE=${processes}` });
  }
  return { flags, presets, warnings };
}

function emptyLayer(): MapNode {
  return { kind: "map", origin: { kind: "preset", text: "LightRFT" }, entries: [] };
}

function put(layer: MapNode, key: string, value: unknown, origin: Origin): void {
  putNode(layer, key, nodeFromObject(value, origin));
}
