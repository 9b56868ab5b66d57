/** Composes the configuration from a LightRFT command line. */

import { mistakesError } from "../compose/mistakes.ts";
import { type ComposedConfig, type ConfigSources, composeConfig } from "../compose.ts";
import type { Mistake } from "../tree/node.ts";
import { warningLine } from "../warnings.ts";
import { parseFlags } from "./parse-flags.ts";
import { checkRules, findWorld, type World } from "./rules.ts";
import { type LightRftSettings, toSettings } from "./to-settings.ts";

export interface LightRftCommand {
  settings: LightRftSettings;
  /** The experiment's script, if given. */
  script: string | undefined;
  /** Overrides `key=value`, which win over the flags. */
  overrides: string[];
}

const hint = "hone lightrft --help lists every flag with its type, default and meaning";

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

  const world = findWorld(parsed, givenWorld(environment, overrides, mistakes));
  const warnings = mistakes.length === 0 ? checkRules(parsed, world, mistakes) : [];
  if (mistakes.length > 0) throw mistakesError(mistakes, hint);
  const settings = toSettings(parsed, world);
  settings.warnings.unshift(...warnings);
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
