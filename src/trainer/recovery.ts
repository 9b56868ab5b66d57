/** What becomes of a run that fails: it goes on by itself where its engine only lost the model's state, or says how to. */
import { existsSync, readdirSync } from "node:fs";
import { join, relative } from "node:path";
import { stateLostIn } from "../backends/engine-died.ts";
import { RunError } from "../errors.ts";
import type { Run } from "./run.ts";

export interface Recovery {
  /** How often the run has gone on by itself. */
  readonly count: number;
  /** Overrides with which the next attempt goes on where this one stopped. */
  readonly overrides: readonly string[];
  begin(run: Run): void;
  /** What is done about an error, in words; undefined when the run ends with it. */
  after(error: unknown): string | undefined;
  /** Whether `after` has been asked about the error. */
  knows(error: unknown): boolean;
  /** The error that the run ends with: it names the command to go on with. */
  final(error: unknown): unknown;
}

/** Attempts in a row that begin at the same step. */
const mostWithoutProgress = 3;

export function createRecovery(): Recovery {
  let count = 0;
  let folder: string | undefined;
  let [begunAt, fruitless] = [0, 0];
  let last: { error: unknown; text: string | undefined } | undefined;

  function decide(error: unknown): string | undefined {
    const lost = stateLostIn(error);
    if (!lost || folder === undefined || fruitless >= mostWithoutProgress) return undefined;
    count++;
    fruitless++;
    return `${lost.message}; going on from the last checkpoint (recovery ${count} of this run)`;
  }

  return {
    get count() {
      return count;
    },
    get overrides() {
      if (folder === undefined) return [];
      const checkpoints = join(folder, "checkpoints");
      // Without a checkpoint of its own the run begins where it first did.
      const saved = existsSync(checkpoints) && readdirSync(checkpoints).length > 0;
      return [
        `rllm.trainer.run_dir=${JSON.stringify(folder)}`,
        ...(saved ? ["training.resume_mode=auto", "training.resume_from_path=null"] : []),
      ];
    },
    begin({ folder: runFolder, progress }) {
      if (progress.step !== begunAt) fruitless = 0;
      begunAt = progress.step;
      folder = runFolder?.path;
    },
    after(error) {
      if (last === undefined || last.error !== error) last = { error, text: decide(error) };
      return last.text;
    },
    knows: (error) => last !== undefined && last.error === error,
    final(error) {
      if (!(error instanceof RunError) || folder === undefined) return error;
      const path = relative(process.cwd(), folder);
      if (error.hint?.includes(`--resume ${path}`)) return error;
      const hint = [error.hint?.replace(/\.$/, ""), `continue with --resume ${path}`].filter(Boolean).join("; ");
      return new RunError(error.message, { hint, details: error.details, cause: error });
    },
  };
}
