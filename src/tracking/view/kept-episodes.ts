/** The episodes in a run folder: finds and reads them, and decodes their tokens one by one. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { incrementalDecoder } from "../../chat/tokens/incremental-decoder.ts";
import { openTokenizer } from "../../chat/tokens/tokenizer.ts";
import { RunError, UserError } from "../../errors.ts";
import { atPath } from "../../system-errors.ts";
import type { Episode, Trajectory } from "../../trajectories/types.ts";
import { readEpisode } from "../run-folder/read-episode.ts";
import type { StepTraining } from "../run-folder/token-values.ts";

/**
 * `advantage`: one of the trajectory, or for each step one, or one per token. `training`: what the update computed for the
 * tokens of each step; null for what it did not train on, absent in older runs.
 */
export type KeptTrajectory = Trajectory & {
  advantage?: number | readonly (number | readonly number[])[];
  training?: readonly (StepTraining | null)[] | null;
};
export type KeptEpisode = Omit<Episode, "trajectories"> & { trajectories: KeptTrajectory[] };

export interface EpisodeFile {
  step: number;
  kind: "train" | "validation";
  path: string;
}

/** In the order of steps; a validation comes after the training step that it followed. */
export function episodeFiles(run: string): EpisodeFile[] {
  const folder = join(run, "episodes");
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .flatMap((name): EpisodeFile[] => {
      const found = /^step-(\d+)(-validation)?\.jsonl$/.exec(name);
      if (found === null) return [];
      return [{ step: Number(found[1]), kind: found[2] ? "validation" : "train", path: join(folder, name) }];
    })
    .sort((left, right) => left.step - right.step || (left.kind === "train" ? -1 : 1));
}

/** @throws RunError naming the file and line that cannot be read */
export function readEpisodes({ path }: EpisodeFile): KeptEpisode[] {
  const lines = atPath(path, () => readFileSync(path, "utf8")).split("\n");
  return lines.flatMap((line, index) => {
    if (line.trim() === "") return [];
    try {
      return [readEpisode(line)];
    } catch (cause) {
      throw new RunError(`${path}:${index + 1} is not an episode: ${(cause as Error).message}`, { cause });
    }
  });
}

/** One text per token; joined, they are the decoded text. */
export type Pieces = (tokens: Iterable<number>) => string[];

/** Decodes with the tokenizer in the run folder; undefined if it has none. */
export function openPieces(run: string): Pieces | undefined {
  try {
    const tokenizer = openTokenizer(join(run, "tokenizer"));
    return (tokens) => {
      const decoder = incrementalDecoder((ids) => tokenizer.decode(ids));
      const pieces = Array.from(tokens, (token) => decoder.push(token));
      const rest = decoder.end();
      if (pieces.length > 0) pieces[pieces.length - 1] += rest;
      return pieces;
    };
  } catch (error) {
    if (error instanceof UserError) return undefined;
    throw error;
  }
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
