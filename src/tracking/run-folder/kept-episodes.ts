/** Episodes as a run folder holds them, and the texts of their tokens. */
import { join } from "node:path";
import { incrementalDecoder } from "../../chat/tokens/incremental-decoder.ts";
import { openTokenizer } from "../../chat/tokens/tokenizer.ts";
import { HoneError, UserError } from "../../errors.ts";
import { formatBytes } from "../../files/durable-files.ts";
import { type OpenFile, withInside } from "../../files/regular-file.ts";
import { readable } from "../../system-errors.ts";
import type { Episode, Trajectory } from "../../trajectories/types.ts";
import type { StepTraining } from "./token-values.ts";

/**
 * `advantage`: one of the trajectory, or for each step one, or one per token. `training`: what the update computed for the
 * tokens of each step; null for what it did not train on, absent in older runs.
 */
export type KeptTrajectory = Trajectory & {
  advantage?: number | readonly (number | readonly number[])[];
  training?: readonly (StepTraining | null)[] | null;
};
export type KeptEpisode = Omit<Episode, "trajectories"> & { trajectories: KeptTrajectory[] };

/** One text per token; joined, they are the decoded text. */
export type Pieces = (tokens: Iterable<number>) => string[];

/** Decodes with the tokenizer in the run folder; undefined if it has none, or it cannot be read. */
export function openPieces(run: string): Pieces | undefined {
  try {
    for (const file of ["tokenizer.json", "tokenizer_config.json"]) withInside(run, `tokenizer/${file}`, requireSmall);
    const tokenizer = openTokenizer(join(run, "tokenizer"));
    return (tokens) => {
      const decoder = incrementalDecoder((ids) => tokenizer.decode(ids));
      const pieces = Array.from(tokens, (token) => decoder.push(token));
      const rest = decoder.end();
      if (pieces.length > 0) pieces[pieces.length - 1] += rest;
      return pieces;
    };
  } catch (error) {
    if (readable(error) instanceof HoneError) return undefined;
    throw error;
  }
}

/** Tokenizers of large vocabularies have 35 MB. */
const mostTokenizerBytes = 1 << 28;

function requireSmall({ stat }: OpenFile): void {
  if (stat.size > mostTokenizerBytes) throw new UserError(`the tokenizer has ${formatBytes(stat.size)}`);
}

/** The advantage of each token of a step; undefined if unknown. */
export function tokenAdvantages(
  { advantage }: KeptTrajectory,
  step: number,
  tokens: number,
): readonly number[] | undefined {
  const own = typeof advantage === "object" ? advantage[step] : advantage;
  return typeof own === "number" ? new Array<number>(tokens).fill(own) : (own ?? undefined);
}
