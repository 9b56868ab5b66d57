/** The `hone` command: what exists and how it is called. Each command's work is loaded when it runs. */
import { readFileSync } from "node:fs";
import { Command, CommanderError } from "commander";
import { reportError } from "./report-error.ts";

const version = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")).version as string;

const overridesHelp = `
Overrides are key=value pairs of the configuration; \`hone config\` lists every key with its meaning.
  rllm.trainer.total_batches=20  training.learning_rate=1e-3  rllm.trainer.logger=[console,tensorboard]`;

function program(): Command {
  const hone = new Command("hone")
    .description("Reinforcement-learning post-training of language models and agents, from TypeScript.")
    .version(version)
    .showHelpAfterError("(add --help for usage)")
    .configureHelp({ sortSubcommands: false });

  hone
    .command("train")
    .description("Train a model with the experiment of a TypeScript file.")
    .argument("<script>", "a file that exports an experiment by default, or calls train() itself")
    .argument("[overrides...]", "key=value pairs of the configuration")
    .option("-c, --config <file...>", "YAML files, later ones win; overrides win over them")
    .option("--resume <folder>", "continue the run in this folder, e.g. runs/latest")
    .option("--checkpoint <folder>", "start from the weights of this checkpoint")
    .option("--dry-run", "print the resolved configuration and the arithmetic of the run, then stop")
    .addHelpText(
      "after",
      `${overridesHelp}

Examples:
  hone train examples/larger-number/train.ts
  hone train ./train.ts model.name=./my-model training.learning_rate=5e-5
  hone train ./train.ts --config gpu.yaml rllm.rollout.n=16
  hone train ./train.ts --resume runs/latest`,
    )
    .action(async (script: string, overrides: string[], options) => {
      await (await import("./train.ts")).trainCommand(script, overrides, options);
    });

  hone
    .command("eval")
    .description("Measure a model or a checkpoint on an experiment's validation tasks.")
    .argument("<script>", "the experiment's TypeScript file")
    .argument("[overrides...]", "key=value pairs of the configuration")
    .option("-c, --config <file...>", "YAML files")
    .option("--checkpoint <folder>", "a run folder or a checkpoint in it; without it the base model is measured")
    .addHelpText(
      "after",
      `
Examples:
  hone eval examples/larger-number/train.ts
  hone eval examples/larger-number/train.ts --checkpoint runs/latest
  hone eval ./train.ts --checkpoint runs/latest/checkpoints/step-000010 rllm.rollout.n_val=4`,
    )
    .action(async (script: string, overrides: string[], options) => {
      await (await import("./train.ts")).evalCommand(script, overrides, options);
    });

  hone
    .command("chat")
    .description("Talk to a model or a checkpoint.")
    .argument("[overrides...]", "key=value pairs of the configuration")
    .option("--checkpoint <folder>", "a run folder or a checkpoint in it")
    .option("--message <text>", "answer this one message and stop")
    .option("--system <text>", "a system message")
    .addHelpText(
      "after",
      `
Examples:
  hone chat
  hone chat --checkpoint runs/latest
  hone chat model.name=./my-model --message "Which number is larger, 12 or 31?"`,
    )
    .action(async (overrides: string[], options) => {
      await (await import("./chat.ts")).chatCommand(overrides, options);
    });

  hone
    .command("export")
    .description("Write a checkpoint's weights as files that other programs load.")
    .argument("<checkpoint>", "a run folder or a checkpoint in it")
    .argument("<folder>", "where to write; must not exist")
    .option("--as <form>", "adapter (PEFT) or merged (a Hugging Face model directory)", "adapter")
    .addHelpText(
      "after",
      `
Examples:
  hone export runs/latest my-adapter
  hone export runs/latest/checkpoints/step-000010 my-model --as merged`,
    )
    .action(async (checkpoint: string, folder: string, options) => {
      await (await import("./export.ts")).exportCommand(checkpoint, folder, options);
    });

  hone
    .command("doctor")
    .description("Check versions, devices and memory, push one batch through everything, say what is wrong.")
    .argument("[overrides...]", "key=value pairs of the configuration, e.g. model.name=./my-model")
    .addHelpText("after", "\nExamples:\n  hone doctor\n  hone doctor model.name=./my-model local.dtype=float32")
    .action(async (overrides: string[]) => {
      await (await import("./doctor.ts")).doctorCommand(overrides);
    });

  hone
    .command("config")
    .description("Print the composed configuration, or explain its keys.")
    .argument("[overrides...]", "key=value pairs of the configuration")
    .option("-c, --config <file...>", "YAML files")
    .option("--format <form>", "yaml or json", "yaml")
    .option("--explain [key]", "each value with its meaning and where it comes from")
    .option("--schema", "print the JSON Schema that editors complete YAML files from")
    .addHelpText(
      "after",
      `
Examples:
  hone config
  hone config training.learning_rate=1e-4 --format json
  hone config --explain training.learning_rate
  hone config --schema > hone.schema.json`,
    )
    .action(async (overrides: string[], options) => {
      await (await import("./config.ts")).configCommand(overrides, options);
    });

  return hone;
}

/** Every command ends through an exception instead of inside the parser, so that a mistyped one exits with 2. */
function endByException(command: Command): Command {
  for (const child of command.exitOverride().commands) endByException(child);
  return command;
}

try {
  await endByException(program()).parseAsync();
} catch (error) {
  // The parser has said what is wrong; help and version are no mistakes.
  if (error instanceof CommanderError) process.exitCode = error.exitCode === 0 ? 0 : 2;
  else process.exitCode = reportError(error);
}
