/** `hone train`: trains a model on the experiment of a script. */
import { dirname, resolve } from "node:path";
import { type Command, Option } from "commander";
import type { ComposedConfig } from "../../config/compose.ts";
import { printWarnings } from "../../config/warnings.ts";
import { toYaml } from "../../config/yaml/to-yaml.ts";
import { UserError } from "../../errors.ts";
import type { Launch } from "../../trainer/launch.ts";
import { type LaunchFlags, launchOf } from "../launch-of.ts";
import { multirun } from "../multirun.ts";
import { configFiles, overrides } from "../options.ts";
import { runScript } from "../run-script.ts";
import { isSpareCopy, torchrunOverrides } from "../torchrun.ts";

interface TrainFlags extends LaunchFlags {
  multirun?: boolean;
  cfg?: "job";
  resolve?: boolean;
  configPath?: string;
  configName?: string;
  configDir?: string;
}

export function register(command: Command): void {
  command
    .argument("<script>", "a file that calls train(), or has an experiment as its default export")
    .argument(...overrides)
    .addOption(configFiles())
    .option("--resume <folder>", "continue the run in this folder, e.g. runs/latest")
    .option("--from <run>", "start from this run's model and weights, with a fresh optimizer")
    .option("--checkpoint <folder>", "start from the weights of this checkpoint")
    .option("--dry-run", "print the resolved configuration and the size of the run, then stop")
    .option("--explain [key]", "explain a key, a section or all keys with the script's settings, then stop")
    .option("--view", "show the run as a page while it trains, as hone view does")
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
  const { cfg, resolve: resolved = false } = flags;
  if (resolved && cfg === undefined) throw new UserError("--resolve requires --cfg job");
  if (flags.view && flags.multirun) throw new UserError("--view shows one run; use hone view runs with --multirun");
  const search = searchOf(script, flags);
  if (flags.multirun || overrides.includes("hydra.mode=MULTIRUN")) {
    const { resume, checkpoint, from, dryRun = false, config: files = [] } = flags;
    const options = { resume, checkpoint, from, dryRun, cfg, resolved, files, search };
    process.exitCode = await multirun(script, overrides, options);
    return;
  }
  const launch = { script, search, ...launchOf(overrides, flags) };
  if (cfg !== undefined) launch.inspect ??= (composed) => printJob(composed, resolved);
  await runScript(script, launch);
}

/** `--cfg job`: the configuration with its references, or with their values. */
function printJob(composed: ComposedConfig, resolved: boolean): void {
  printWarnings(composed.warnings);
  process.stdout.write(toYaml(resolved ? composed.stored : composed.unresolved, new Map(), { unresolved: true }));
}

/** As in Hydra, a relative --config-path starts at the script and a relative --config-dir at the working folder. */
function searchOf(script: string, { configPath, configName, configDir }: TrainFlags): NonNullable<Launch["search"]> {
  const search: NonNullable<Launch["search"]> = {};
  if (configPath !== undefined) {
    const isUrl = /^[a-z]+:\/\//.test(configPath);
    search.configPath = isUrl ? configPath : resolve(dirname(script), configPath);
  }
  if (configName !== undefined) search.configName = configName.replace(/\.yaml$/, "");
  if (configDir !== undefined) search.configDirs = [configDir];
  return search;
}
