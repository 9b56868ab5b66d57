/** What `hone sft` and `hone dpo` have in common: a command that trains on a file instead of on the tasks of a script. */
import type { Command } from "commander";
import { composeConfig } from "../config/compose.ts";
import type { Config, ConfigInput } from "../config/schema.ts";
import { concatenated } from "../data/concatenated.ts";
import { openDataset } from "../data/open-dataset.ts";
import type { Dataset, FileRow } from "../data/types.ts";
import { UserError } from "../errors.ts";
import type { SourceOptions } from "../supervised/experiment.ts";
import { savedConfigFile } from "../trainer/checkpoints/open-checkpoint.ts";
import type { Experiment } from "../trainer/experiment.ts";
import { train } from "../trainer/train.ts";
import { type LaunchFlags, launchOf } from "./launch-of.ts";
import { configFiles } from "./options.ts";
import { isScript, loadExperiment } from "./run-script.ts";
import { isSpareCopy, torchrunOverrides } from "./torchrun.ts";

type MakeExperiment = (options: SourceOptions) => Experiment<unknown>;

export function registerLearning(
  command: Command,
  make: MakeExperiment,
  { data, help }: { data: string; help: string },
) {
  command
    .usage("[options] [data] [script] [overrides...]")
    .argument("[arguments...]", `${data}; an experiment's script; key=value pairs of the configuration`)
    .addOption(configFiles())
    .option("--resume <folder>", "continue the run in this folder, e.g. runs/latest, with its data")
    .option("--from <run>", "start from this run's model and weights, with a fresh optimizer")
    .option("--dry-run", "print the resolved configuration and the size of the run, then stop")
    .option("--explain [key]", "explain a key, a section or all keys with these settings, then stop")
    .option("--view", "show the run as a page while it trains, as hone view does")
    .addHelpText("after", help)
    .action((words: string[], flags: LaunchFlags) => learn(make, words, flags));
}

async function learn(make: MakeExperiment, words: readonly string[], flags: LaunchFlags): Promise<void> {
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
