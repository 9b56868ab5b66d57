/** A checkpoint by any name a person would give it: itself, its run folder, or a link to that. */
import { existsSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { composeConfig } from "../config/compose.ts";
import type { Config } from "../config/schema.ts";
import { UserError } from "../errors.ts";
import { bestCheckpoint, type Checkpoint, latestCheckpoint, readCheckpoint } from "./checkpoints.ts";

export interface OpenCheckpoint {
  folder: string;
  step: number;
  config: Config;
}

function printWarning(text: string): void {
  process.stderr.write(`warning: ${text}\n`);
}

/**
 * @param path a checkpoint folder; a run folder (its newest whole checkpoint is taken); `{run folder}/best`, or `best` for
 * that of runs/latest
 * @param warn told of damaged checkpoints that are passed over
 * @throws UserError when there is no checkpoint at `path`; RunError when all are damaged
 */
export async function openCheckpoint(path: string, warn = printWarning): Promise<OpenCheckpoint> {
  const found = await findCheckpoint(path, warn);
  const { config } = composeConfig({ input: found.state.config as never });
  return { folder: found.path, step: found.step, config };
}

/** The same without its configuration. */
export async function findCheckpoint(path: string, warn = printWarning): Promise<Checkpoint> {
  const folder = (await namedBest(path)) ?? resolve(path);
  if (!existsSync(folder)) throw new UserError(`${path}: no such folder`, { hint: "runs/latest is the newest run" });
  const inRun = join(folder, "checkpoints");
  const found = existsSync(inRun) ? await latestCheckpoint(inRun, warn) : await readCheckpoint(folder);
  if (!found)
    throw new UserError(`${path} has no checkpoint yet`, {
      hint: "a run saves one every rllm.trainer.save_freq steps",
    });
  return found;
}

/** The folder of a run's best checkpoint where `path` asks for that; a real folder named best comes first. */
async function namedBest(path: string): Promise<string | undefined> {
  if (basename(path) !== "best" || existsSync(path)) return undefined;
  const run = path === "best" ? join("runs", "latest") : dirname(path);
  const inRun = join(run, "checkpoints");
  if (!existsSync(inRun)) throw new UserError(`${run}: no such run folder`, { hint: "runs/latest is the newest run" });
  const best = await bestCheckpoint(inRun);
  if (best !== undefined) return best.path;
  throw new UserError(`${run} has no best checkpoint: none was saved at the step of a validation`, {
    hint: "training.keep_best=true saves a checkpoint at every new best validation",
  });
}
