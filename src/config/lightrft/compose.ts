/** A LightRFT command line: parsed to typed values like LightRFT's own parser does, then composed to a configuration of Hone. */
import { z } from "zod";
import { nearest } from "../../base/text.ts";
import { checkValue } from "../check.ts";
import { type ComposedConfig, type ConfigSources, composeConfig } from "../compose.ts";
import { describeKey, type KeyDescription } from "../schema.ts";
import { mistakesError, warningLine } from "../secrets.ts";
import {
  type ConfigWarning,
  type MapNode,
  type Mistake,
  nodeFromObject,
  type Origin,
  oneLine,
  putNode,
} from "../tree.ts";
import { type CommandLine, type FlagName, type FlagValues, flagTable } from "./flags.ts";

export interface ParsedFlags {
  values: FlagValues;
  /** Each given flag as it was typed: `"--max_len 4096"`. */
  given: ReadonlyMap<string, string>;
}

/** Descriptions of all flags for help and messages. */
export const flagDescriptions: ReadonlyMap<string, KeyDescription> = new Map(
  flagTable.map(([name, { type }]) => [name, describeKey(name, type)]),
);

/** Every spelling of a flag, with the flag's name. */
export const spellings: ReadonlyMap<string, FlagName> = new Map(
  flagTable.flatMap(([name, { aliases = [], opposite }]) =>
    [name, ...aliases, ...(opposite === undefined ? [] : [opposite])].map((spelling) => [spelling, name]),
  ),
);

const opposites = new Set(flagTable.map(([, { opposite }]) => opposite));

/**
 * Reads `--flag value`, `--flag=value`, switches without a value and `--adam_betas 0.9 0.95`. The last value of a
 * repeated flag wins. Invalid input is added to `mistakes`; words before and between flags are added to `positional`.
 */
export function parseFlags(args: readonly string[], positional: string[], mistakes: Mistake[]): ParsedFlags {
  const found: Record<string, unknown> = {};
  const given = new Map<string, string>();
  for (let at = 0; at < args.length; ) {
    const typed = args[at++]!;
    if (!typed.startsWith("--")) {
      positional.push(typed);
      continue;
    }
    const [spelled = "", inline] = splitAt(typed.slice(2), "=");
    const name = spellings.get(spelled);
    if (name === undefined) {
      mistakes.push({ where: oneLine(typed), message: `unknown flag${suggestion(spelled)}` });
      if (inline === undefined && args[at]?.startsWith("--") === false) at++;
      continue;
    }
    const known = flagDescriptions.get(name)!;
    const words = inline === undefined ? [] : [inline];
    if (isSwitch(known)) {
      if (inline !== undefined) mistakes.push({ where: oneLine(typed), message: "does not take a value" });
      found[name] = !opposites.has(spelled);
    } else {
      const wanted = isPair(known) && !(inline ?? args[at] ?? "").includes(",") ? 2 : 1;
      while (words.length < wanted && at < args.length && !args[at]!.startsWith("--")) words.push(args[at++]!);
      if (words.length < wanted) {
        mistakes.push({ where: oneLine(typed), message: `needs ${wanted === 1 ? "a value" : "two values"}` });
        continue;
      }
      const value = readValue(known, words);
      const message = checkValue(known, value);
      if (message === undefined) found[name] = value;
      else mistakes.push({ where: oneLine(`--${spelled} ${words.join(" ")}`), message });
    }
    given.set(name, [inline === undefined ? typed : `--${spelled}`, ...words].join(" "));
  }
  for (const [name] of flagTable) {
    if (isRequired(flagDescriptions.get(name)!) && !given.has(name)) {
      mistakes.push({ where: `--${name}`, message: "is required" });
    }
  }
  const values = Object.fromEntries(
    [...flagDescriptions].map(([name, known]) => [name, Object.hasOwn(found, name) ? found[name] : known.default]),
  ) as FlagValues;
  return { values, given };
}

export function isSwitch({ type }: KeyDescription): boolean {
  return type === "true or false";
}

export const isRequired = ({ default: fallback }: KeyDescription) => fallback === undefined;

const isPair = ({ schema }: KeyDescription) => schema instanceof z.ZodDefault && schema.unwrap() instanceof z.ZodArray;

/** Reads numbers like Python: `1e-6`, `.5`, `1_000`. Anything else stays text, which the check rejects. */
function readValue(known: KeyDescription, words: readonly string[]): unknown {
  const texts = words.flatMap((word) => word.replace(/^[([](.*)[)\]]$/, "$1").split(",")).map((word) => word.trim());
  if (isPair(known)) return texts.map(number);
  const [word = ""] = words;
  return known.acceptsText ? word : number(word);
}

function number(word: string): unknown {
  const plain = /^[+-]?(\d+(_\d+)*\.?(\d+)?|\.\d+)(e[+-]?\d+)?$/i;
  return plain.test(word) ? Number(word.replaceAll("_", "")) : word;
}

function suggestion(spelled: string): string {
  const near = nearest(spelled.replaceAll("-", "_"), [...spellings.keys()], 2);
  return near.length > 0 ? `; did you mean ${near.map((name) => `--${name}`).join(" or ")}?` : "";
}

function splitAt(word: string, separator: string): [string, string | undefined] {
  const at = word.indexOf(separator);
  return at < 0 ? [word, undefined] : [word.slice(0, at), word.slice(at + 1)];
}

// Composes the configuration from a LightRFT command line.

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
