/** Reads an episode from its place in the run folder. */
import { join } from "node:path";
import type { KeptEpisode } from "../../tracking/run-folder/kept-episodes.ts";
import { readEpisode } from "../../tracking/run-folder/read-episode.ts";
import { readAt } from "../index/complete-lines.ts";

export function readKept(folder: string, at: { file: string; offset: number; length: number }): KeptEpisode {
  return readEpisode(readAt(join(folder, "episodes", at.file), at.offset, at.length)) as KeptEpisode;
}
