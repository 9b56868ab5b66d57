/** `hone config`: the composed configuration, its explanation, two compared. What is asked for goes to standard output. */
import { existsSync, statSync } from "node:fs";
import { unsupportedSettings, unsupportedWarning } from "../config/check-support.ts";
import { type ComposedConfig, type ConfigSources, composeConfig } from "../config/compose.ts";
import type { ExplainedKey } from "../config/explain.ts";
import { toYaml } from "../config/to-yaml.ts";
import { warningLine } from "../config/warnings.ts";
import { shownTree } from "../config/without-secrets.ts";
import { UserError } from "../errors.ts";
import { savedConfigFile } from "../trainer/saved-config.ts";

interface ConfigOptions {
  config?: string[];
  configPath?: string;
  configName?: string;
  format: string;
  explain?: string | true;
  schema?: boolean;
}

export async function configCommand(overrides: string[], options: ConfigOptions): Promise<void> {
  if (options.schema) {
    await schemaCommand();
    return;
  }
  // `--explain training.lr=1e-4` leaves the override as the option's value.
  const explained = typeof options.explain === "string" && options.explain.includes("=") ? true : options.explain;
  const given = explained === options.explain ? overrides : [String(options.explain), ...overrides];
  const { config: files = [], configPath, configName } = options;
  const sources: ConfigSources = {
    files,
    overrides: given,
    ...(configPath === undefined ? {} : { configPath }),
    ...(configName === undefined ? {} : { configName }),
  };
  await print(composeConfig(sources), options.format, explained);
}

/** `hone config lightrft ...`: LightRFT's flags as a configuration to keep. */
export async function lightRftConfigCommand(
  words: string[],
  options: { format: string; strict?: boolean },
): Promise<void> {
  const { composeLightRft, readLightRft } = await import("../config/lightrft/compose-lightrft.ts");
  const command = readLightRft(words, { strict: options.strict ?? false });
  if (command.script !== undefined) {
    throw new UserError(`${command.script}: hone config lightrft takes flags alone, no script`);
  }
  await print(composeLightRft(command), options.format, undefined);
}

export async function schemaCommand(): Promise<void> {
  const { configJsonSchema } = await import("../config/json-schema.ts");
  process.stdout.write(`${JSON.stringify(configJsonSchema(), null, 2)}\n`);
}

/** `hone config diff A B`: each a YAML file, a run folder, or overrides in one word (`"rllm/backend=tinker a.b=1"`). */
export async function diffCommand(left: string, right: string, { format }: { format: string }): Promise<void> {
  const { diffConfigs } = await import("../config/diff.ts");
  requireFormat(format);
  const lines = diffConfigs(composeConfig(sourcesOf(left)), composeConfig(sourcesOf(right)));
  if (format === "json") process.stdout.write(`${JSON.stringify(lines, null, 2)}\n`);
  else if (lines.length === 0) process.stdout.write("no difference\n");
  for (const { key, left, right } of format === "json" ? [] : lines) {
    process.stdout.write(`${key}\n  - ${said(left)}\n  + ${said(right)}\n`);
  }
}

const said = (side: { value: unknown; originText: string } | undefined) =>
  side === undefined ? "is not there" : `${JSON.stringify(side.value)}  (${side.originText})`;

function sourcesOf(word: string): ConfigSources {
  if (existsSync(word)) return { files: [statSync(word).isDirectory() ? savedConfigFile(word) : word] };
  if (/[=~]/.test(word)) return { overrides: word.trim().split(/\s+/) };
  throw new UserError(`${word}: there is no such file or run folder, and it holds no override (key=value)`);
}

function requireFormat(format: string): void {
  if (format === "yaml" || format === "json") return;
  throw new UserError(`--format ${format} is neither yaml nor json`, { hint: "use --format yaml or --format json" });
}

/** What is heavy is loaded when it is asked for: printing alone stays quick. */
async function print(composed: ComposedConfig, format: string, explained: string | true | undefined): Promise<void> {
  requireFormat(format);
  const unsupported = unsupportedSettings(composed).map((one) => unsupportedWarning(one, { dryRun: true }));
  for (const warning of [...composed.warnings, ...unsupported]) process.stderr.write(`${warningLine(warning)}\n`);
  for (const note of composed.notes) process.stderr.write(`note: ${note}\n`);
  process.stdout.write(`${await text()}\n`);

  async function text(): Promise<string> {
    if (explained !== undefined) {
      const { explainConfig } = await import("../config/explain.ts");
      const keys = explainConfig(composed, explained === true ? undefined : explained);
      return format === "json" ? JSON.stringify(keys, null, 2) : keys.map(explanation).join("\n\n");
    }
    return format === "json"
      ? JSON.stringify(shownTree(composed.tree, composed.masks), null, 2)
      : toYaml(composed.stored, composed.origins, { unresolved: true }).trimEnd();
  }
}

function explanation({ key, value, originText, type, description, effect, note, ...rest }: ExplainedKey): string {
  const fallback = "default" in rest ? `, default ${JSON.stringify(rest.default)}` : "";
  return [
    `${key} = ${JSON.stringify(value)}`,
    `  ${description}`,
    `  type:   ${type}${fallback}`,
    `  origin: ${originText}`,
    `  effect: ${effect}`,
    ...(note === undefined ? [] : [`  note:   ${note}`]),
  ].join("\n");
}
