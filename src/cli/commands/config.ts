/** `hone config`: prints the composed configuration, explains its keys, compares two configurations. */
import { existsSync, statSync } from "node:fs";
import type { Command } from "commander";
import { type ComposedConfig, type ConfigSources, composeConfig } from "../../config/compose.ts";
import { shownTree } from "../../config/secrets/without-secrets.ts";
import { toYaml } from "../../config/yaml/to-yaml.ts";
import { UserError } from "../../errors.ts";
import type { ExplainedKey } from "../../support/explain.ts";
import { savedConfigFile } from "../../trainer/checkpoints/open-checkpoint.ts";
import { configFiles, format, overrides, strict } from "../options.ts";
import { printWarnings } from "../print-warnings.ts";
import { wrapped } from "../wrapped.ts";

interface ConfigFlags {
  config?: string[];
  format: Form;
  explain?: string | true;
}

type Form = "yaml" | "json";

export function register(config: Command): void {
  config
    .argument(...overrides)
    .addOption(configFiles())
    .addOption(format())
    .option("--explain [key]", "print each value with its type, meaning, origin and effect on the backend")
    .addHelpText("after", help)
    .action(configCommand);
  config
    .command("diff")
    .description("Compare two configurations: the keys that differ, both values, and their origins.")
    .argument("<left>", 'a YAML file, a run folder, or overrides as one word: "rllm/backend=tinker rllm.rollout.n=4"')
    .argument("<right>", "the same")
    .addOption(format())
    .addHelpText(
      "after",
      `
Examples:
  hone config diff cpu.yaml gpu.yaml
  hone config diff runs/larger-number-1 runs/latest
  hone config diff rllm/backend=local rllm/backend=tinker`,
    )
    .action((left: string, right: string, _, command: Command) => diffCommand(left, right, command.optsWithGlobals()));
  config
    .command("schema")
    .description("Print the JSON Schema that editors use to complete and check YAML files.")
    .addHelpText(
      "after",
      `
Examples:
  hone config schema > hone.schema.json

Then start a YAML file with:
  # yaml-language-server: $schema=./hone.schema.json`,
    )
    .action(schemaCommand);
  config
    .command("lightrft")
    .description("Print LightRFT's flags as a configuration file.")
    .argument("[flags...]", "LightRFT's flags, as in hone lightrft, and key=value pairs")
    .addOption(format())
    .addOption(strict())
    .allowUnknownOption()
    .addHelpText(
      "after",
      `
Examples:
  hone config lightrft --pretrain ./my-model --train_batch_size 64 \\
    --rollout_batch_size 16 > train.yaml`,
    )
    .action((words: string[], _, command: Command) => lightRftCommand(words, command.optsWithGlobals()));
}

const help = `
The configuration is printed to standard output. Warnings go to standard error,
one per line:
  warning[deprecated_native]  a backend's older name of a key was set
  warning[conflict]           two names of one key were set to different values;
                              the line says which one wins
  warning[coerced]            a value was changed because of another one
  warning[unsupported]        the backend does not support a setting; a run
                              would stop here
  warning[no_effect]          a setting has no effect without another one

Examples:
  hone config
  hone config training.learning_rate=1e-4 --format json
  hone config --explain training.learning_rate
  hone config rllm/backend=verl rllm.algorithm.kl_beta=0.01 \\
    --explain actor_rollout_ref.actor.use_kl_loss
  hone config diff runs/latest "rllm/backend=tinker"
  hone config schema > hone.schema.json
  hone config lightrft --pretrain ./my-model --train_batch_size 64 \\
    --rollout_batch_size 16 > train.yaml`;

async function configCommand(overrides: string[], { config: files = [], format, explain }: ConfigFlags): Promise<void> {
  // In `--explain training.lr=1e-4` the parser takes the override as the option's value.
  const isOverride = typeof explain === "string" && explain.includes("=");
  const composed = composeConfig({ files, overrides: isOverride ? [explain, ...overrides] : overrides });
  await print(composed, format, isOverride ? true : explain);
}

/** `hone config lightrft`: prints LightRFT's flags as a configuration file. */
async function lightRftCommand(words: string[], flags: { format: Form; strict?: boolean }): Promise<void> {
  const { composeLightRft, readLightRft } = await import("../../config/lightrft/compose-lightrft.ts");
  const command = readLightRft(words, { strict: flags.strict ?? false });
  if (command.script !== undefined) {
    throw new UserError(`${command.script}: hone config lightrft takes flags, not a script`);
  }
  await print(composeLightRft(command), flags.format);
}

async function schemaCommand(): Promise<void> {
  const { configJsonSchema } = await import("../../config/json-schema.ts");
  printJson(configJsonSchema());
}

/** `hone config diff A B`; each is a YAML file, a run folder, or overrides as one word (`"rllm/backend=tinker a.b=1"`). */
async function diffCommand(left: string, right: string, { format }: { format: Form }): Promise<void> {
  const { diffConfigs } = await import("../../config/diff.ts");
  const differences = diffConfigs(composeConfig(sourcesOf(left)), composeConfig(sourcesOf(right)));
  if (format === "json") return printJson(differences);
  if (differences.length === 0) process.stdout.write("no difference\n");
  for (const { key, left, right } of differences) {
    process.stdout.write(`${key}\n  - ${sideText(left)}\n  + ${sideText(right)}\n`);
  }
}

const sideText = (side: { value: unknown; originText: string } | undefined) =>
  side === undefined ? "not set" : `${JSON.stringify(side.value)}  (${side.originText})`;

function sourcesOf(word: string): ConfigSources {
  if (existsSync(word)) return { files: [statSync(word).isDirectory() ? savedConfigFile(word) : word] };
  if (/[=~]/.test(word)) return { overrides: word.trim().split(/\s+/) };
  throw new UserError(`${word} is neither a file, a run folder nor an override`, { hint: "an override is key=value" });
}

function printJson(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value, null, 2)}\n`);
}

async function print(composed: ComposedConfig, format: Form, explained?: string | true): Promise<void> {
  printWarnings(composed);
  for (const note of composed.notes) process.stderr.write(`note: ${note}\n`);
  if (explained !== undefined) {
    const { explainConfig } = await import("../../support/explain.ts");
    const keys = explainConfig(composed, explained === true ? undefined : explained);
    if (format === "json") printJson(keys);
    else process.stdout.write(`${keys.map(explanation).join("\n\n")}\n`);
  } else if (format === "json") printJson(shownTree(composed.tree, composed.masks));
  else process.stdout.write(`${toYaml(composed.stored, composed.origins, { unresolved: true }).trimEnd()}\n`);
}

function explanation({ key, value, originText, type, description, effect, note, ...rest }: ExplainedKey): string {
  const fallback = "default" in rest ? `, default ${JSON.stringify(rest.default)}` : "";
  return [
    `${key} = ${JSON.stringify(value)}`,
    `  ${wrapped(description, 2)}`,
    `  type:   ${wrapped(type + fallback, 10)}`,
    `  origin: ${wrapped(originText, 10)}`,
    `  effect: ${wrapped(effect, 10)}`,
    ...(note === undefined ? [] : [`  note:   ${wrapped(note, 10)}`]),
  ].join("\n");
}
