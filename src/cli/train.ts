/** `hone train` and `hone eval`: load an experiment's script, without a build step, and run it. */
import { readdirSync, statSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { UserError } from "../errors.ts";
import { importModule } from "../import-module.ts";
import { nearest } from "../nearest.ts";
import type { Experiment } from "../trainer/experiment.ts";
import { type Launch, setLaunch, takeLaunch } from "../trainer/launch.ts";
import { train } from "../trainer/train.ts";

export interface TrainOptions {
  config?: string[];
  resume?: string;
  checkpoint?: string;
  dryRun?: boolean;
  multirun?: boolean;
  cfg?: string;
  resolve?: boolean;
  configPath?: string;
  configName?: string;
  configDir?: string;
}

export async function trainCommand(script: string, overrides: string[], options: TrainOptions): Promise<void> {
  const { cfg, resolve: resolved = false } = options;
  if (cfg !== undefined && cfg !== "job") {
    throw new UserError(`--cfg ${cfg} is not known`, { hint: "--cfg job prints the configuration of the run" });
  }
  if (resolved && cfg === undefined) throw new UserError("--resolve stands beside --cfg job only");
  const search = searchOf(script, options);
  if (options.multirun || overrides.includes("hydra.mode=MULTIRUN")) {
    const { multirun } = await import("./multirun.ts");
    process.exitCode = await multirun(script, overrides, { ...options, search });
    return;
  }
  await runScript(script, {
    overrides,
    search,
    ...(cfg === undefined ? {} : { printConfig: resolved ? "resolved" : "written" }),
    files: options.config ?? [],
    ...(options.resume === undefined ? {} : { resume: options.resume }),
    ...(options.checkpoint === undefined ? {} : { checkpoint: options.checkpoint }),
    dryRun: options.dryRun ?? false,
  });
}

export interface EvalOptions {
  config?: string[];
  checkpoint?: string[];
  base?: boolean;
  output?: string;
  json?: boolean;
}

export async function evalCommand(script: string, overrides: string[], options: EvalOptions): Promise<void> {
  const { config: files = [], checkpoint: checkpoints = [], base = false, output, json = false } = options;
  const candidates = [...(base || checkpoints.length === 0 ? [null] : []), ...checkpoints];
  const evaluate = { candidates, json, ...(output === undefined ? {} : { output }) };
  await runScript(script, { overrides, files, evaluate });
}

/** As Hydra has it, a relative --config-path begins at the script and a relative --config-dir at the working folder. */
function searchOf(script: string, { configPath, configName, configDir }: TrainOptions): NonNullable<Launch["search"]> {
  const isPath = configPath !== undefined && !/^[a-z]+:\/\//.test(configPath);
  return {
    ...(configPath === undefined ? {} : { configPath: isPath ? resolve(dirname(script), configPath) : configPath }),
    ...(configName === undefined ? {} : { configName: configName.replace(/\.yaml$/, "") }),
    ...(configDir === undefined ? {} : { configDirs: [configDir] }),
  };
}

/** Runs an experiment's script, which hears `launch`, without a build step. */
export async function runScript(script: string, launch: Launch): Promise<void> {
  const path = checkScript(script);
  setLaunch(launch);
  const loaded: { default?: unknown } = await importModule(path);
  const pending = takeLaunch();
  if (isExperiment(loaded.default)) process.exitCode = (await train(loaded.default, pending ?? launch)).exitCode;
  else if (pending) {
    throw new UserError(`${script} neither exports an experiment by default nor calls train()`, {
      hint: "write: export default defineExperiment({ train, workflow })",
    });
  }
}

/** @returns its absolute path */
function checkScript(script: string): string {
  const path = resolve(script);
  const found = statSync(path, { throwIfNoEntry: false });
  if (!found) {
    const [near] = nearest(basename(path), scriptsIn(dirname(path)), 1);
    const hint = script.includes("=")
      ? "name the script first, then the overrides: hone train ./train.ts key=value"
      : near === undefined
        ? "name a file that exports an experiment, such as ./train.ts"
        : `did you mean ${join(dirname(script), near)}?`;
    throw new UserError(`${script}: no such file`, { hint });
  }
  if (!found.isFile()) {
    const inside = scriptsIn(path)[0];
    const hint = inside === undefined ? "name a file such as ./train.ts" : `name a file in it: ${join(script, inside)}`;
    throw new UserError(`${script} is not a file`, { hint });
  }
  if (!isScript(script)) {
    throw new UserError(`${script} is not an ES module in TypeScript or JavaScript`, {
      hint: "a script's name ends in .ts, .mts, .js or .mjs",
    });
  }
  return path;
}

const isScript = (name: string) => /\.m?[jt]sx?$/.test(name);

function scriptsIn(folder: string): string[] {
  try {
    return readdirSync(folder).filter(isScript);
  } catch {
    return [];
  }
}

function isExperiment(value: unknown): value is Experiment<unknown> {
  return typeof value === "object" && value !== null && "train" in value;
}
