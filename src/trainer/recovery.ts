/** Continues a failed run from its last checkpoint if its engine only lost the model's state, else says how to continue. */
import { existsSync, readdirSync } from "node:fs";
import { join, relative } from "node:path";
import { stateLostIn } from "../backends/engine-died.ts";
import { RunError } from "../errors.ts";
import type { Run } from "./run.ts";

export interface Recovery {
  /** How often the run has recovered. */
  readonly count: number;
  /** Overrides with which the next attempt continues where this one stopped. */
  overrides(): string[];
  begin(run: Run): void;
  /** Reports that the run recovers from the error; undefined: the run ends with it. */
  after(error: unknown): string | undefined;
  /** The error that the run ends with. Names the command to continue with. */
  final(error: unknown): unknown;
}

/** Attempts in a row that begin at the same step. */
const maxWithoutProgress = 3;

export function createRecovery(): Recovery {
  let count = 0;
  let folder: string | undefined;
  let [begunAt, fruitless] = [0, 0];
  return {
    get count() {
      return count;
    },
    overrides() {
      if (folder === undefined) return [];
      const checkpoints = join(folder, "checkpoints");
      // A run without a checkpoint starts again from its beginning.
      const saved = existsSync(checkpoints) && readdirSync(checkpoints).length > 0;
      const resume = saved ? ["training.resume_mode=auto", "training.resume_from_path=null"] : [];
      return [`rllm.trainer.run_dir=${JSON.stringify(folder)}`, ...resume];
    },
    begin({ folder: runFolder, progress }) {
      if (progress.step !== begunAt) fruitless = 0;
      begunAt = progress.step;
      folder = runFolder?.path;
    },
    after(error) {
      const lost = stateLostIn(error);
      if (!lost || folder === undefined || fruitless >= maxWithoutProgress) return undefined;
      count++;
      fruitless++;
      return `${lost.message}; continuing from the last checkpoint (recovery ${count} of this run)`;
    },
    final(error) {
      if (!(error instanceof RunError) || folder === undefined) return error;
      const path = relative(process.cwd(), folder);
      if (error.hint?.includes(`--resume ${path}`)) return error;
      const hint = [error.hint?.replace(/\.$/, ""), `to continue, add --resume ${path} to the command`]
        .filter(Boolean)
        .join("; ");
      return new RunError(error.message, { code: error.code, hint, details: error.details, cause: error });
    },
  };
}
