/** `hone config`: prints the composed configuration, explains its keys, compares two configurations. */
import { existsSync, statSync } from "node:fs";
import type { Command } from "commander";
import { UserError } from "../../base/errors.ts";
import { type ConfigSources, composeConfig } from "../../config/compose.ts";
import { savedConfigFile } from "../../trainer/resume.ts";
import { configFiles, type Form, format, printConfig, printing, printJson, strict } from "./options.ts";
import { isScript, runScript } from "./script.ts";

interface ConfigFlags {
  config?: string[];
  format: Form;
  explain?: string | true;
}

export function register(config: Command): void {
  config
    .argument("[words...]", "an experiment's script, whose settings apply, and Hydra overrides, e.g. rllm.rollout.n=8")
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
  warning[invalid]            settings contradict each other; a run would stop
                              here
  warning[unsupported]        the backend or the machine does not support a
                              setting; a run would stop here
  warning[no_effect]          a setting has no effect without another one

Examples:
  hone config
  hone config training.learning_rate=1e-4 --format json
  hone config --explain training.learning_rate
  hone config ./train.ts --explain rllm.algorithm.eps_clip
  hone config rllm/backend=verl rllm.algorithm.kl_beta=0.01 \\
    --explain actor_rollout_ref.actor.use_kl_loss
  hone config diff runs/latest "rllm/backend=tinker"
  hone config schema > hone.schema.json
  hone config lightrft --pretrain ./my-model --train_batch_size 64 \\
    --rollout_batch_size 16 > train.yaml`;

async function configCommand(words: string[], { config: files = [], format, explain }: ConfigFlags): Promise<void> {
  // In `--explain training.lr=1e-4` or `--explain ./train.ts` the parser takes the next word as the option's value.
  const isWord = typeof explain === "string" && (explain.includes("=") || isScript(explain));
  const [asked, given] = isWord ? [true as const, [explain, ...words]] : [explain, words];
  const scripts = given.filter((word) => !word.includes("=") && isScript(word));
  const overrides = given.filter((word) => !scripts.includes(word));
  if (scripts.length > 1) throw new UserError(`hone config takes one script, not ${scripts.join(" and ")}`);
  const [script] = scripts;
  if (script === undefined) return printConfig(composeConfig({ files, overrides }), format, asked);
  await runScript(script, { files, overrides, perform: printing(format, asked) });
}

/** `hone config lightrft`: prints LightRFT's flags as a configuration file. */
async function lightRftCommand(words: string[], flags: { format: Form; strict?: boolean }): Promise<void> {
  const { composeLightRft, readLightRft } = await import("../../config/lightrft/compose.ts");
  const command = readLightRft(words, { strict: flags.strict ?? false });
  if (command.script !== undefined) {
    throw new UserError(`${command.script}: hone config lightrft takes flags, not a script`);
  }
  printConfig(composeLightRft(command), flags.format);
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
