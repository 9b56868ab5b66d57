/** Holds episodes until they are needed: in memory, or on disk to keep memory free. */
import { createHash } from "node:crypto";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { toJson } from "../../tracking/run-folder/json-lines.ts";
import { readEpisode } from "../../tracking/run-folder/read-episode.ts";
import type { Episode } from "../../trajectories/types.ts";

export interface EpisodeStore {
  /** @param name of the file */
  put(name: string, episodes: Episode[]): Promise<StoredEpisodes>;
  /** Removes what is left. */
  clear(): Promise<void>;
}

/** Returns the episodes and removes their file. Call it once. */
export type StoredEpisodes = () => Promise<Episode[]>;

const memory: EpisodeStore = { put: async (_name, episodes) => async () => episodes, clear: async () => {} };

/**
 * @param directory null: memory; else the run gets a folder in it, with one line of JSON per episode
 * @param run the run folder, which distinguishes runs that share the directory. What an earlier process left is removed
 * @param kind of the content, e.g. "episodes"
 */
export async function openEpisodeStore(directory: string | null, run: string, kind: string): Promise<EpisodeStore> {
  if (directory === null) return memory;
  const mark = createHash("sha256").update(run).digest("hex").slice(0, 8);
  const folder = join(directory, `${basename(run)}-${mark}-${kind}`);
  const clear = () => rm(folder, { recursive: true, force: true });
  await clear();
  await mkdir(folder, { recursive: true });
  return {
    async put(name, episodes) {
      const file = join(folder, `${name}.jsonl`);
      await writeFile(file, episodes.map((episode) => `${toJson(episode)}\n`).join(""));
      return async () => {
        const lines = (await readFile(file, "utf8")).split("\n").filter((line) => line !== "");
        await rm(file);
        return lines.map(readEpisode);
      };
    },
    clear,
  };
}
