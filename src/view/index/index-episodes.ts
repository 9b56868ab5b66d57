/** Adds the episodes of a run folder to its index, a slice at a time. */
import { existsSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import type { KeptEpisode } from "../../tracking/run-folder/kept-episodes.ts";
import { readEpisode } from "../../tracking/run-folder/read-episode.ts";
import { completeLines } from "./complete-lines.ts";
import { episodeRows } from "./episode-rows.ts";
import type { IndexDatabase } from "./open-database.ts";

interface IndexedFile {
  name: string;
  /** Changes when the file is replaced. */
  mark: string;
  offset: number;
  rows: number;
}

interface EpisodeFile {
  name: string;
  step: number;
  kind: "train" | "validation";
  mark: string;
  bytes: number;
}

export interface EpisodeIndexer {
  /**
   * Indexes until the time is up. Removes episodes whose files no longer exist.
   * @returns the share of the files' bytes that is indexed, 1: everything
   */
  advance(until: number): number;
}

const columns =
  "key, place, step, kind, task, rollout, role, instance, reward, advantage, part_tokens, part_turns, correct, termination, failure, boundary, tokens, turns, tools, seconds, retries, oldest, version".split(
    ", ",
  );

export function indexEpisodes(database: IndexDatabase, run: string, onProblem: (text: string) => void): EpisodeIndexer {
  const folder = join(run, "episodes");
  const known = database.prepare("SELECT name, mark, offset, rows FROM files");
  const putFile = database.prepare("INSERT OR REPLACE INTO files (name, mark, offset, rows) VALUES (?, ?, ?, ?)");
  const insert = database.prepare(
    `INSERT INTO trajectories (episode, part, ${columns.join(", ")}) VALUES (?, ?, ${columns.map(() => "?").join(", ")})`,
  );
  const setEpisode = database.prepare("UPDATE trajectories SET episode = row WHERE row = ?");
  const insertText = database.prepare("INSERT INTO texts (rowid, text) VALUES (?, ?)");
  const insertRetry = database.prepare("INSERT INTO retries (episode, failure, boundary, message) VALUES (?, ?, ?, ?)");
  const insertDetails = database.prepare(
    "INSERT INTO details (episode, file, offset, length, message, explanation, preview) VALUES (?, ?, ?, ?, ?, ?, ?)",
  );
  const setSignal = database.prepare(`
    UPDATE trajectories SET signal = found.signal FROM (
      SELECT task, role, count(*) > 1 AND min(reward) <> max(reward) AS signal FROM trajectories
      WHERE step = ?1 AND kind = 'train' AND reward IS NOT NULL GROUP BY task, role
    ) AS found
    WHERE step = ?1 AND kind = 'train' AND trajectories.task = found.task AND trajectories.role = found.role`);
  let listed = "";
  let files: EpisodeFile[] = [];

  function forget(name: string): void {
    const episodes = "IN (SELECT episode FROM details WHERE file = ?)";
    for (const rows of ["texts WHERE rowid", "retries WHERE episode", "trajectories WHERE episode"]) {
      database.prepare(`DELETE FROM ${rows} ${episodes}`).run([name]);
    }
    database.prepare("DELETE FROM details WHERE file = ?").run([name]);
    database.prepare("DELETE FROM files WHERE name = ?").run([name]);
  }

  function add(file: EpisodeFile, place: number, offset: number, length: number, text: string): void {
    const { episode, parts, retriedAfter, text: searched } = episodeRows(readEpisode(text) as KeptEpisode);
    const key = `${file.kind === "train" ? "t" : "v"}${file.step}.${place}`;
    const { step, kind, name } = file;
    const placed = { key, place, step, kind };
    let first = 0;
    for (const [part, own] of parts.entries()) {
      const values: Record<string, unknown> = { ...placed, ...episode, ...own };
      const { lastInsertRowid } = insert.run([first, part, ...columns.map((column) => values[column] ?? null)]);
      if (part === 0) {
        first = Number(lastInsertRowid);
        setEpisode.run([first]);
      }
    }
    const { message, explanation, preview } = episode;
    insertDetails.run([first, name, offset, length, message, explanation, preview]);
    insertText.run([first, searched]);
    for (const { kind: failure, boundary, message } of retriedAfter)
      insertRetry.run([first, failure, boundary, message]);
  }

  /** @returns whether the file is complete */
  function indexFile(file: EpisodeFile, from: IndexedFile | undefined, until: number): boolean {
    let offset = from?.offset ?? 0;
    let rows = from?.rows ?? 0;
    let complete = true;
    for (const line of completeLines(join(folder, file.name), offset)) {
      if (line.text.trim() !== "") {
        try {
          add(file, rows, line.offset, line.length, line.text);
        } catch (error) {
          onProblem(`episodes/${file.name}:${rows + 1} is not an episode: ${(error as Error).message}`);
        }
        rows++;
      }
      offset = line.offset + line.length + 1;
      if (performance.now() > until) {
        complete = offset >= file.bytes;
        break;
      }
    }
    if (complete && file.kind === "train") setSignal.run([file.step]);
    putFile.run([file.name, file.mark, complete ? file.bytes : offset, rows]);
    return complete;
  }

  return {
    advance(until) {
      const stamp = existsSync(folder) ? String(statSync(folder).mtimeMs) : "none";
      if (stamp !== listed || stamp === "none") {
        files = listFiles(folder);
        // A folder that has just changed may change again within the resolution of its time stamp.
        listed = Date.now() - Number(stamp) > 2000 ? stamp : "";
      }
      const indexed = new Map((known.all([]) as IndexedFile[]).map((file) => [file.name, file]));
      const marks = new Map(files.map((file) => [file.name, file.mark]));
      for (const [name, { mark }] of indexed) {
        if (marks.get(name) === mark) continue;
        forget(name);
        indexed.delete(name);
      }
      let left = 0;
      for (const file of files) {
        const at = indexed.get(file.name);
        const done = at?.offset ?? 0;
        if (done >= file.bytes) continue;
        if (performance.now() > until) left += file.bytes - done;
        else if (!indexFile(file, at, until)) left += (file.bytes - done) / 2;
      }
      const total = files.reduce((sum, { bytes }) => sum + bytes, 0);
      return total === 0 ? 1 : 1 - left / total;
    },
  };
}

/** The newest steps first, because users look at these first. */
function listFiles(folder: string): EpisodeFile[] {
  if (!existsSync(folder)) return [];
  const files = readdirSync(folder).flatMap((name): EpisodeFile[] => {
    const found = /^step-(\d+)(-validation)?\.jsonl$/.exec(name);
    const stat = found && statSync(join(folder, name), { throwIfNoEntry: false });
    if (!found || !stat) return [];
    const kind = found[2] ? "validation" : "train";
    return [{ name, step: Number(found[1]), kind, mark: `${stat.ino}:${stat.mtimeMs}:${stat.size}`, bytes: stat.size }];
  });
  return files.sort((left, right) => right.step - left.step);
}
