/**
 * `hone train --multirun`: starts a run for each combination of the overrides' values, one after the other, each in a
 * process and a folder of its own. Prints a table of the results.
 */
import { existsSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { type Command, Option } from "commander";
import { stringify } from "yaml";
import { UserError } from "../../base/errors.ts";
import { makeFolder } from "../../base/files.ts";
import { type ComposedConfig, composeHydraSettings } from "../../config/compose.ts";
import { expandSweep } from "../../config/hydra/expand-sweep.ts";
import { searchPath } from "../../config/hydra/load-config.ts";
import { isMistake, parseOverride } from "../../config/hydra/overrides.ts";
import { maskOverride, printWarnings } from "../../config/secrets.ts";
import { shippedFolder } from "../../config/tree.ts";
import { toYaml } from "../../config/yaml.ts";
import { formatNumber } from "../../tracking/events.ts";
import { readMetrics } from "../../tracking/run-folder.ts";
import type { Launch } from "../../trainer/experiment.ts";
import { launchOf, overrides, type TrainingFlags, trainingOptions } from "./options.ts";
import { spawnWithParent } from "./report-error.ts";
import { isSpareCopy, runScript, torchrunOverrides } from "./script.ts";

interface RunResult {
  /** The overrides that differ between the runs. */
  overrides: readonly string[];
  folder: string;
  exitCode: number;
}

/** Exit code of a run that Ctrl-C stopped. Later runs are not started. */
const stopped = 130;

/**
 * @returns 0 if every run succeeded, else the exit code of the first that did not
 * @throws UserError before anything starts if an override of any run is wrong
 */
async function multirun(script: string, overrides: string[], flags: TrainFlags): Promise<number> {
  if (flags.resume !== undefined) {
    throw new UserError("--resume continues a single run and cannot be combined with --multirun", {
      hint: "resume one run by its folder: hone train ./train.ts --resume FOLDER/0",
    });
  }
  const search = searchOf(script, flags);
  const folders = [search.configPath ?? [], search.configDirs ?? [], shippedFolder].flat();
  const sets = expandSweep(
    overrides.filter((text) => text !== "hydra.mode=MULTIRUN"),
    { groupOptions: (group) => searchPath(folders).options(group) },
  );
  const given = sets[0]?.find((text) => ["rllm.trainer.run_dir", "hydra.run.dir"].includes(keyOf(text) ?? ""));
  if (given !== undefined) {
    throw new UserError(`${given}: each run of a multirun needs its own folder`, {
      hint: "set the folder that contains them: hydra.sweep.dir=FOLDER",
    });
  }
  const willTrain = flags.cfg === undefined && !flags.dryRun && flags.explain === undefined;
  const files = flags.config ?? [];
  const [settings] = sets.map((set) => composeHydraSettings({ ...search, files, overrides: set }));
  const runs = sets.map((set) => ({
    set,
    varying: set.filter((text, index) => sets.some((other) => other[index] !== text)).map(maskOverride),
  }));
  const title = (index: number) => `run ${index + 1} of ${runs.length}: ${runs[index]?.varying.join(" ")}`;
  if (!willTrain) {
    let first = 0;
    for (const [index, { set }] of runs.entries()) {
      process.stdout.write(`${index > 0 ? "---\n" : ""}# ${title(index)}\n`);
      const exitCode = await start(script, set, flags);
      first ||= exitCode;
    }
    return first;
  }

  const root = sweepFolder(settings?.sweepDir?.value as string | undefined);
  const listed = runs.map(({ varying }, index) => ({ folder: String(index), overrides: varying }));
  writeFileSync(join(root, "multirun.yaml"), stringify({ script, runs: listed }));
  const results: RunResult[] = [];
  for (const [index, { set, varying }] of runs.entries()) {
    const folder = join(root, String(index));
    process.stderr.write(`\n${title(index)}\n`);
    const exitCode = await start(script, [...set, `++rllm.trainer.run_dir=${JSON.stringify(folder)}`], flags);
    results.push({ overrides: varying, folder, exitCode });
    if (exitCode === stopped) break;
  }
  process.stdout.write(`\n${resultTable(results)}\n`);
  const left = runs.length - results.length;
  if (left > 0) process.stderr.write(`stopped: ${left} of ${runs.length} runs were not started\n`);
  return results.find(({ exitCode }) => exitCode !== 0)?.exitCode ?? 0;
}

function keyOf(text: string): string | undefined {
  const parsed = parseOverride(text);
  return isMistake(parsed) ? undefined : parsed.key;
}

function sweepFolder(given: string | undefined): string {
  const root =
    given ?? join("runs", `multirun-${new Date().toISOString().slice(0, 19).replaceAll(":", "").replace("T", "-")}`);
  if (existsSync(root) && readdirSync(root).length > 0) {
    throw new UserError(`${root} is not empty; a multirun needs a new folder`, {
      hint: "set another folder: hydra.sweep.dir=FOLDER",
    });
  }
  makeFolder(root);
  return root;
}

/** Starts a process for one run, so that a failed run leaves nothing behind in the next. */
async function start(script: string, overrides: readonly string[], flags: TrainFlags): Promise<number> {
  const { multirun: _, view: __, ...ofEach } = flags;
  const options = Object.entries(ofEach).flatMap(([name, value]) => {
    const option = `--${name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
    return [value ?? []].flat().map((one) => (one === true ? option : `${option}=${one}`));
  });
  const child = spawnWithParent([...process.argv.slice(1, 2), "train", script, ...overrides, ...options]);
  // Ctrl-C also reaches the child; this process continues, to print the table.
  const wait = () => {};
  process.on("SIGINT", wait);
  try {
    return await new Promise<number>((resolve, reject) => {
      child.once("error", reject);
      child.once("close", (code) => resolve(code ?? 1));
    });
  } finally {
    process.off("SIGINT", wait);
  }
}

/** One line per run: its number, its own overrides, its last metrics, how it ended. */
function resultTable(results: readonly RunResult[]): string {
  const rows = results.map(({ overrides, folder, exitCode }, index) => {
    const steps = readMetrics(folder);
    const validation = readMetrics(folder, "validation").at(-1)?.metrics;
    const metric = (value: number | undefined) => (value === undefined ? "-" : formatNumber(value));
    return [
      String(index),
      overrides.join(" ") || "-",
      String(steps.at(-1)?.step ?? 0),
      metric(steps.at(-1)?.metrics["reward/mean"]),
      metric(validation?.["val/reward"]),
      exitCode === 0 ? "done" : exitCode === stopped ? "stopped" : `failed (${exitCode})`,
      folder,
    ];
  });
  const table = [["run", "overrides", "steps", "reward", "val/reward", "ended", "folder"], ...rows];
  const width = (column: number) => Math.max(...table.map((row) => row[column]?.length ?? 0));
  return table
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(width(column)))
        .join("  ")
        .trimEnd(),
    )
    .join("\n");
}

// `hone train`: trains a model on the experiment of a script.

interface TrainFlags extends TrainingFlags, SearchFlags {
  multirun?: boolean;
  cfg?: "job";
  resolve?: boolean;
}

interface SearchFlags {
  configPath?: string | undefined;
  configName?: string | undefined;
  configDir?: string | undefined;
}

export function register(command: Command): void {
  command
    .argument("<script>", "a file that calls train(), or has an experiment as its default export")
    .argument(...overrides);
  trainingOptions(command, "script")
    .option("-m, --multirun", "start a run for each combination of values: a=1,2 b=range(1,4)")
    .addOption(new Option("--cfg <what>", "job: print the configuration as YAML, then stop").choices(["job"]))
    .option("--resolve", "with --cfg: replace references with their values")
    .option("--config-path <folder>", "search this folder first for named configurations (-cp); relative to the script")
    .option("--config-name <name>", "start from this named configuration instead of unified (-cn)")
    .option("--config-dir <folder>", "also search this folder for named configurations (-cd)")
    .addHelpText("after", help)
    .action(trainCommand);
}

const help = `
Overrides; \`hone config --explain\` lists every key with its meaning:
  rllm.trainer.total_batches=20   sets a value
  rllm.trainer.logger=[console,tensorboard]
  rllm/backend=tinker             chooses an option of a configuration group
  +key=value  ++key=value         adds a key; adds or changes it
  ~key                            removes a key
  'key=\${other.key}'              refers to another key (quoted for the shell)

Examples:
  hone train ./train.ts
  hone train ./train.ts model.name=./my-model training.learning_rate=5e-5
  hone train ./train.ts --config gpu.yaml rllm.rollout.n=16
  hone train ./train.ts --resume runs/latest
  hone train ./train.ts rllm/backend=tinker --cfg job
  hone train ./train.ts --explain rllm.algorithm.eps_clip
  hone train ./train.ts -m training.learning_rate=1e-4,1e-5 rllm.rollout.n=4,8`;

async function trainCommand(script: string, own: string[], flags: TrainFlags): Promise<void> {
  if (isSpareCopy()) return;
  const overrides = [...torchrunOverrides(), ...own];
  const { multirun: several, cfg, resolve: resolved = false, configPath, configName, configDir, ...training } = flags;
  if (resolved && cfg === undefined) throw new UserError("--resolve requires --cfg job");
  if (flags.view && several) throw new UserError("--view shows one run; use hone view runs with --multirun");
  if (several || overrides.includes("hydra.mode=MULTIRUN")) {
    process.exitCode = await multirun(script, overrides, flags);
    return;
  }
  const search = searchOf(script, { configPath, configName, configDir });
  const launch = { script, search, ...launchOf(overrides, training) };
  if (cfg !== undefined) launch.perform ??= (_experiment, composed) => printJob(composed, resolved);
  await runScript(script, launch);
}

/** `--cfg job`: the configuration with its references, or with their values. */
function printJob(composed: ComposedConfig, resolved: boolean): number {
  printWarnings(composed.warnings);
  process.stdout.write(toYaml(resolved ? composed.stored : composed.unresolved, new Map(), { unresolved: true }));
  return 0;
}

/** As in Hydra, a relative --config-path starts at the script and a relative --config-dir at the working folder. */
function searchOf(script: string, { configPath, configName, configDir }: SearchFlags): NonNullable<Launch["search"]> {
  const search: NonNullable<Launch["search"]> = {};
  if (configPath !== undefined) {
    const isUrl = /^[a-z]+:\/\//.test(configPath);
    search.configPath = isUrl ? configPath : resolve(dirname(script), configPath);
  }
  if (configName !== undefined) search.configName = configName.replace(/\.yaml$/, "");
  if (configDir !== undefined) search.configDirs = [configDir];
  return search;
}
