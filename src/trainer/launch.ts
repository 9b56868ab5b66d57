/**
 * Passes the command line to a script that calls `train` itself: `hone train ./train.ts key=value` stores the flags here
 * before it imports the script. They are on `globalThis` so that two copies of the package share them.
 */
import type { Engine } from "../backends/engine.ts";
import type { ScriptFacts } from "../backends/rule.ts";
import type { Chat } from "../chat/types.ts";
import type { ComposedConfig, ConfigSources } from "../config/compose.ts";
import type { ConfigWarning } from "../config/warnings.ts";
import { launchKey } from "../pending-resume.ts";
import type { Experiment } from "./experiment.ts";

export interface EvaluationRequest {
  /** Checkpoints, and null for the base model, each measured on all tasks and compared with the first. */
  candidates: readonly (string | null)[];
  /** The folder for the results, new or empty; default `runs/eval-{experiment}-{date}`. */
  output?: string;
  /** Print the summary as JSON to standard output and everything else to standard error. */
  json?: boolean;
}

export interface Launch {
  /** The script that was named on the command line, for what to do next. */
  script?: string;
  /** Settings translated from the flags of another system, such as LightRFT. */
  translated?: Pick<ConfigSources, "presets" | "flags"> & { warnings: readonly ConfigWarning[] };
  /** `a.b=value`, strongest. */
  overrides?: readonly string[];
  /** YAML files, weaker than the overrides and stronger than the script's own config. */
  files?: readonly string[];
  /** Where named configurations are searched, and the one to begin with. */
  search?: Pick<ConfigSources, "configPath" | "configDirs" | "configName">;
  /** Continue the run in this folder. */
  resume?: string;
  /** Weights to start from: a checkpoint folder. Weights only; optimizer and step count start fresh. */
  checkpoint?: string;
  /** A run or checkpoint to start from, with its model and its weights: sets `training.start_from` and `model`. */
  from?: string;
  /** Only measure, without training steps and checkpoints. A request also keeps the results and compares models. */
  evaluate?: boolean | EvaluationRequest;
  /** Called with the run folder once the run begins. */
  onBegin?: (folder: string) => void;
  /** Print the plan and stop before anything starts. */
  dryRun?: boolean;
  /** Called with the configuration and what is known of the script, instead of running. */
  inspect?: (composed: ComposedConfig, script: ScriptFacts) => void;
  /** Called with the experiment and its configuration, instead of training. Returns the exit code. */
  perform?: (experiment: Experiment<unknown>, composed: ComposedConfig) => Promise<number>;
}

export interface TrainOptions extends Launch {
  /** An engine that is open already, with the chat of its model. The caller closes it. */
  engine?: { engine: Engine; chat: Chat };
}

const holder = globalThis as { [launchKey]?: Launch };

export function setLaunch(launch: Launch): void {
  holder[launchKey] = launch;
}

/** The pending launch, for the first `train` of the script; undefined after that. */
export function takeLaunch(): Launch | undefined {
  const launch = holder[launchKey];
  delete holder[launchKey];
  return launch;
}

/** The options that a script passes to `train`, combined with a launch: the command line wins. */
export function withLaunch(options: TrainOptions, launch: Launch): TrainOptions {
  return {
    ...options,
    ...launch,
    search: { ...options.search, ...launch.search },
    files: [...(options.files ?? []), ...(launch.files ?? [])],
    overrides: [...(options.overrides ?? []), ...(launch.overrides ?? [])],
  };
}
