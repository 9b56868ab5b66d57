/** What `hone sft` and `hone dpo` have in common: a command that trains on a file instead of on the tasks of a script. */
import type { Command } from "commander";
import { UserError } from "../../base/errors.ts";
import { composeConfig } from "../../config/compose.ts";
import type { Config, ConfigInput } from "../../config/schema.ts";
import { concatenated, type Dataset, type FileRow } from "../../data/dataset.ts";
import { openDataset } from "../../data/open-dataset.ts";
import { dpo } from "../../supervised/dpo.ts";
import type { SourceOptions } from "../../supervised/experiment.ts";
import { sft } from "../../supervised/sft.ts";
import type { Experiment } from "../../trainer/experiment.ts";
import { savedConfigFile } from "../../trainer/resume.ts";
import { train } from "../../trainer/train.ts";
import { launchOf, type TrainingFlags, trainingOptions } from "./options.ts";
import { isScript, isSpareCopy, loadExperiment, torchrunOverrides } from "./script.ts";

type MakeExperiment = (options: SourceOptions) => Experiment<unknown>;

export function registerLearning(
  command: Command,
  make: MakeExperiment,
  { data, help }: { data: string; help: string },
) {
  command
    .usage("[options] [data] [script] [overrides...]")
    .argument("[arguments...]", `${data}; an experiment's script; key=value pairs of the configuration`);
  trainingOptions(command, "file")
    .addHelpText("after", help)
    .action((words: string[], flags: TrainingFlags) => learn(make, words, flags));
}

async function learn(make: MakeExperiment, words: readonly string[], flags: TrainingFlags): Promise<void> {
  if (isSpareCopy()) return;
  const { config: files = [], resume } = flags;
  const { data, script, assignments } = wordsOf(words);
  const overrides = [
    ...torchrunOverrides(),
    ...assignments,
    ...(data === undefined ? [] : [`data.train_files=${JSON.stringify(data)}`]),
  ];
  const experiment = script === undefined ? undefined : await loadExperiment(script);
  const saved = resume === undefined ? [] : [savedConfigFile(resume)];
  const given: ConfigInput = experiment?.config ?? {};
  // verl's configuration names example files, which no one asked for.
  const input = { ...given, data: { train_files: null, val_files: null, ...given.data } };
  const { config } = composeConfig({ input, files: [...saved, ...files], overrides });
  const opened = await openData(config.data);
  const made = make(experiment === undefined ? opened : { ...opened, experiment });
  process.exitCode = (await train(made, launchOf(overrides, flags))).exitCode;
}

function wordsOf(words: readonly string[]) {
  const assignments = words.filter((word) => /^[+~]|=/.test(word));
  const named = words.filter((word) => !assignments.includes(word));
  const scripts = named.filter(isScript);
  const data = named.filter((word) => !scripts.includes(word));
  if (data.length > 1 || scripts.length > 1) {
    throw new UserError(`${named.join(" ")}: name one file of data and at most one script`, {
      hint: "several files: 'data.train_files=[a.jsonl,b.jsonl]'",
    });
  }
  return { data: data[0], script: scripts[0], assignments };
}

async function openData({
  train_files,
  val_files,
}: Config["data"]): Promise<Pick<SourceOptions, "data" | "validation">> {
  if (train_files === null) {
    throw new UserError("the data is missing", { hint: "name a file: hone sft rows.jsonl" });
  }
  const data = await openAll(train_files);
  return val_files === null ? { data } : { data, validation: await openAll(val_files) };
}

async function openAll(files: string | string[]): Promise<Dataset<FileRow>> {
  return concatenated(await Promise.all([files].flat().map((file) => openDataset(file))));
}

// `hone sft`: fine-tunes a model on the rows of a file.

export function registerSft(command: Command): void {
  registerLearning(command, sft, {
    data: "rows: a .jsonl or .parquet file, or hub:organization/name",
    help: `
A row is a conversation (messages with tools, or ShareGPT's conversations), a
prompt and a completion, an instruction (Alpaca), text, or input_ids. With an
experiment's script, its validation tasks are attempted as in hone train.

Examples:
  hone sft rows.jsonl model.name=./my-model
  hone sft rows.jsonl data.val_files=held-out.jsonl sft.train_on=last_assistant_message
  hone sft rows.jsonl ./train.ts training.learning_rate=2e-4
  hone sft --resume runs/latest`,
  });
}

// `hone dpo`: trains a model on the preference pairs of a file.

export function registerDpo(command: Command): void {
  registerLearning(command, dpo, {
    data: "pairs: a .jsonl or .parquet file, or hub:organization/name",
    help: `
A pair is TRL's {prompt, chosen, rejected}, as text or messages, or OpenAI's
{input, preferred_output, non_preferred_output}. The reference is the model
before training: the base model, or the run of --from.

Examples:
  hone dpo pairs.jsonl --from runs/latest
  hone dpo pairs.jsonl model.name=./my-model dpo.loss_type=ipo dpo.beta=0.05
  hone dpo --resume runs/latest`,
  });
}
