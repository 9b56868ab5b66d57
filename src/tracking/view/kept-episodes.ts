/** The episodes of a run folder, as they were kept: found, read, and their tokens turned back into text. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { incrementalDecoder } from "../../chat/incremental-decoder.ts";
import { openTokenizer } from "../../chat/tokenizer.ts";
import { RunError, UserError } from "../../errors.ts";
import { atPath } from "../../system-errors.ts";
import type { ChatMessage, Episode, Step, Trajectory } from "../../trajectories/types.ts";

/** A step of a file: what was a typed array is a list. */
export type KeptStep = Pick<Step, "stopReason" | "text" | "policyVersion" | "reward" | "tools" | "reply"> & {
  promptTokens: number[];
  tokens: number[];
  logprobs: (number | string)[];
  messages: ChatMessage[];
};

/** What a token counted for in training: one figure, or one a step, or lists of one a token. */
type KeptAdvantage = number | (number | number[])[];

export type KeptTrajectory = Pick<Trajectory, "name" | "instance" | "reward"> & {
  steps: KeptStep[];
  advantage?: KeptAdvantage;
};

export type KeptEpisode = Omit<Episode, "trajectories"> & { trajectories: KeptTrajectory[] };

export interface EpisodeFile {
  step: number;
  kind: "train" | "validation";
  path: string;
}

/** By step, validations after the training step that they followed. */
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

/** @throws RunError naming file and line that cannot be read */
export function readEpisodes({ path }: EpisodeFile): KeptEpisode[] {
  return atPath(path, () => readFileSync(path, "utf8"))
    .split("\n")
    .flatMap((line, index) => {
      if (line.trim() === "") return [];
      try {
        const episode = JSON.parse(line) as KeptEpisode | null;
        if (!Array.isArray(episode?.trajectories)) throw new Error("it has no trajectories");
        return [episode];
      } catch (cause) {
        throw new RunError(`${path}:${index + 1} is no episode: ${(cause as Error).message}`, { cause });
      }
    });
}

/** Texts of tokens, one each; together they are the decoded text. */
export type Pieces = (tokens: readonly number[]) => string[];

/** By the tokenizer that the run kept; undefined where it kept none. */
export function openPieces(run: string): Pieces | undefined {
  try {
    const tokenizer = openTokenizer(join(run, "tokenizer"));
    return (tokens) => {
      const decoder = incrementalDecoder((ids) => tokenizer.decode(ids));
      const pieces = tokens.map((token) => decoder.push(token));
      const rest = decoder.end();
      if (pieces.length > 0) pieces[pieces.length - 1] += rest;
      return pieces;
    };
  } catch (error) {
    if (error instanceof UserError) return undefined;
    throw error;
  }
}

/** What each token of a step counted for; undefined where it is not known. */
export function tokenAdvantages({ advantage }: KeptTrajectory, step: number, tokens: number): number[] | undefined {
  const own = Array.isArray(advantage) ? advantage[step] : advantage;
  if (own === undefined || own === null) return undefined;
  return Array.isArray(own) ? own : new Array<number>(tokens).fill(own);
}
