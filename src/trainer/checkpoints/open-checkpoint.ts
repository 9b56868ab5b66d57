/** Finds a checkpoint by its own folder, its run's folder, or a link to one of them. */
import { existsSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { type ComposedConfig, composeConfig } from "../../config/compose.ts";
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import { withInside } from "../../files/regular-file.ts";
import { newestRun } from "../../tracking/run-folder/run-folder.ts";
import { bestCheckpoint, type Checkpoint, latestCheckpoint, readCheckpoint } from "./checkpoints.ts";

export interface OpenCheckpoint {
  folder: string;
  step: number;
  config: Config;
  composed: ComposedConfig;
}

function printWarning(text: string): void {
  process.stderr.write(`warning: ${text}\n`);
}

const missingRun = (path: string) => new UserError(`the run folder ${path} does not exist`, { hint: newestRun() });

/**
 * @param path a checkpoint folder; a run folder, for its newest complete checkpoint; `{run folder}/best`, or `best` for
 * the best checkpoint of runs/latest
 * @throws UserError if there is no checkpoint at `path`; RunError if all are damaged
 */
export async function openCheckpoint(path: string): Promise<OpenCheckpoint> {
  const found = await findCheckpoint(path);
  const composed = composeConfig({ input: found.state.config as never });
  return { folder: found.path, step: found.step, config: composed.config, composed };
}

/**
 * The same without its configuration.
 *
 * @param warn reports damaged checkpoints that are skipped, and those that cannot be checked
 */
export async function findCheckpoint(path: string, warn = printWarning): Promise<Checkpoint> {
  const folder = (await namedBest(path)) ?? resolve(path);
  if (!existsSync(folder)) {
    throw new UserError(`the folder ${path} does not exist`, { hint: newestRun() });
  }
  const inRun = join(folder, "checkpoints");
  const found = existsSync(inRun) ? await latestCheckpoint(inRun, warn) : await readCheckpoint(folder, warn);
  if (found) return found;
  throw new UserError(`${path} has no checkpoint so far`, {
    hint: "a run saves one every rllm.trainer.save_freq steps",
  });
}

/** The folder of a run's best checkpoint, if `path` names it. A real folder named best has precedence. */
async function namedBest(path: string): Promise<string | undefined> {
  if (basename(path) !== "best" || existsSync(path)) return undefined;
  const run = path === "best" ? join("runs", "latest") : dirname(path);
  const inRun = join(run, "checkpoints");
  if (!existsSync(inRun)) throw missingRun(run);
  const best = await bestCheckpoint(inRun);
  if (best !== undefined) return best.path;
  throw new UserError(`${run} has no best checkpoint: none was saved at the step of a validation`, {
    hint: "training.keep_best=true saves a checkpoint at every new best validation",
  });
}

/**
 * The config.yaml of a run folder.
 * @throws UserError if there is no such run, or the file is not a regular one
 */
export function savedConfigFile(folder: string): string {
  if (!existsSync(folder)) throw missingRun(folder);
  // A run folder may come from someone else.
  if (withInside(folder, "config.yaml", () => true)) return join(folder, "config.yaml");
  throw new UserError(`${folder} is not a run folder: config.yaml is missing`, {
    hint: "name the folder of a run, such as runs/latest, not one of its checkpoints",
  });
}
