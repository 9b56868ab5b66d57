/** Loads the script of an experiment, without a build step, and runs it. */
import { readdirSync, statSync } from "node:fs";
import { basename, dirname, extname, join, resolve } from "node:path";
import { UserError } from "../../base/errors.ts";
import { importModule } from "../../base/import-module.ts";
import { nearest } from "../../base/text.ts";
import { type Experiment, type Launch, setLaunch, takeLaunch } from "../../trainer/experiment.ts";
import { train } from "../../trainer/train.ts";

/** Runs what the script passes to train(), or else the experiment that it exports by default: never both. */
export async function runScript(script: string, launch: Launch): Promise<void> {
  const path = checkScript(script);
  setLaunch(launch);
  const loaded: { default?: unknown } = await importModule(path);
  const pending = takeLaunch();
  // The script called train(), which took the launch.
  if (!pending) return;
  if (!isExperiment(loaded.default)) {
    throw new UserError(`${script} neither has an experiment as its default export nor calls train()`, {
      hint: "write: export default defineExperiment({ train, workflow })",
    });
  }
  process.exitCode = (await train(loaded.default, pending)).exitCode;
}

/** The experiment that a script exports. @throws UserError if it exports none, or trains by itself */
export async function loadExperiment(script: string): Promise<Experiment<unknown>> {
  const { default: experiment }: { default?: unknown } = await importModule(checkScript(script));
  if (isExperiment(experiment)) return experiment;
  throw new UserError(`${script} has no experiment as its default export`, {
    hint: "write: export default defineExperiment({ train, validation, workflow })",
  });
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
  if (extname(script) === ".py")
    throw new UserError(`${script}: experiments are written in TypeScript`, { hint: ported(script) });
  if (!isScript(script)) {
    throw new UserError(`${script} is not an ES module in TypeScript or JavaScript`, {
      hint: "a script's name ends in .ts, .mts, .js or .mjs",
    });
  }
  return path;
}

/** What to write instead of a Python script. */
const ported = (script: string) => `write a file such as train.ts, and keep an agent in Python as it is:
  import { commandAgent, defineExperiment, openDataset } from "hone-rl";
  export default defineExperiment({
    train: await openDataset("train.jsonl"),
    workflow: commandAgent({ command: ["python", ${JSON.stringify(script)}] }), // prints its reward last
  });`;

export const isScript = (name: string) => /\.m?[jt]sx?$/.test(name);

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

// torchrun starts a copy of its program for each rank and names the ranks in the environment. Hone starts the ranks itself:
// the first copy trains with as many processes, and the others end.

/** @returns whether this is a copy other than the first, which must exit */
export function isSpareCopy(environment: NodeJS.ProcessEnv = process.env): boolean {
  const { TORCHELASTIC_RUN_ID: run, RANK: rank, WORLD_SIZE: world, LOCAL_WORLD_SIZE: here } = environment;
  if (run === undefined) return false;
  if (here !== undefined && here !== world) {
    throw new UserError(`torchrun started ${world} ranks, ${here} of them on this machine`, {
      hint: "local.processes runs on one machine; use rllm/backend=verl for several machines",
    });
  }
  if (Number(rank) === 0) return false;
  process.stderr.write(`rank ${rank} of torchrun ends: Hone in rank 0 starts the processes that train\n`);
  return true;
}

/** The overrides that follow from torchrun's environment; the user's own override them. */
export function torchrunOverrides({ TORCHELASTIC_RUN_ID: run, WORLD_SIZE: world }: NodeJS.ProcessEnv = process.env) {
  return run === undefined || world === undefined ? [] : [`local.processes=${world}`];
}
