/** Reads an episode from its place in the run folder. */
import { HoneError, UserError } from "../../errors.ts";
import { withInside } from "../../files/regular-file.ts";
import { readable } from "../../system-errors.ts";
import type { KeptEpisode } from "../../tracking/run-folder/kept-episodes.ts";
import { readAt } from "../../tracking/run-folder/lines.ts";
import { readEpisode } from "../../tracking/run-folder/read-episode.ts";
import { episodesFolder } from "../index/index-episodes.ts";

/** @throws UserError if the file has changed since it was indexed */
export function readKept(folder: string, at: { file: string; offset: number; length: number }): KeptEpisode {
  const name = `${episodesFolder}/${at.file}`;
  try {
    const text = withInside(folder, name, (file) => readAt(file, at.offset, at.length));
    return readEpisode(text ?? "") as KeptEpisode;
  } catch (cause) {
    if (readable(cause) instanceof HoneError) throw cause;
    throw new UserError(`${name} has changed since it was indexed`, {
      code: "not_found",
      hint: "load it again",
      cause,
    });
  }
}
