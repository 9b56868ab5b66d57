/**
 * How a script that calls `train` itself still hears the command line: `hone train ./train.ts key=value` leaves the
 * flags here before it imports the script. Kept on `globalThis` so that two copies of the package agree.
 */

export interface Launch {
  /** `a.b=value`, strongest. */
  overrides?: readonly string[];
  /** YAML files, weaker than the overrides and stronger than the script's own config. */
  files?: readonly string[];
  /** Continue the run in this folder. */
  resume?: string;
  /** Weights to start from: a checkpoint folder. Weights only; optimizer and step count start fresh. */
  checkpoint?: string;
  /** Only measure: no training step, nothing saved. */
  evaluate?: boolean;
  /** Print the plan and stop before anything starts. */
  dryRun?: boolean;
}

const key = Symbol.for("hone.launch");
const holder = globalThis as { [key]?: Launch };

export function setLaunch(launch: Launch): void {
  holder[key] = launch;
}

/** The pending launch, taken by the first `train` of the script; undefined when there is none (any more). */
export function takeLaunch(): Launch | undefined {
  const launch = holder[key];
  delete holder[key];
  return launch;
}
