/**
 * Adds the episodes of a run folder to its index, a slice at a time, and keeps what cannot be read. Other files of the run are followed
 * in the same way (`followLines`).
 */
import { closeSync, lstatSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { HoneError, readable, UserError } from "../../base/errors.ts";
import { type OpenFile, openInside, withInside } from "../../base/files.ts";
import { mean } from "../../base/values.ts";
import { describeContent } from "../../chat/messages.ts";
import { readEpisode, type StoredEpisode, type StoredTrajectory, tokenAdvantages } from "../../tracking/episodes.ts";
import { completeLines, maxEpisodeBytes, type PlacedLine, toJson, tooLong } from "../../tracking/json-lines.ts";
import { episodesFile } from "../../tracking/run-folder.ts";
import { lastStep } from "../../trajectories/types.ts";
import { cutText, type IndexDatabase, readState, type StoredNumber, stored, writeState } from "./database.ts";

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

/** Within the run folder. */
export const episodesFolder = "episodes";
const pathOf = (name: string) => `${episodesFolder}/${name}`;

export function indexEpisodes(database: IndexDatabase, run: string): EpisodeIndexer {
  const folder = join(run, episodesFolder);
  const known = database.prepare("SELECT name, mark, offset, rows FROM files");
  const putFile = database.prepare("INSERT OR REPLACE INTO files (name, mark, offset, rows) VALUES (?, ?, ?, ?)");
  const insert = database.prepare(
    `INSERT INTO trajectories (episode, part, ${columns.join(", ")}) VALUES (?, ?, ${columns.map(() => "?").join(", ")})`,
  );
  const setEpisode = database.prepare("UPDATE trajectories SET episode = row WHERE row = ?");
  const insertText = database.prepare("INSERT INTO texts (rowid, text) VALUES (?, ?)");
  const insertGrading = database.prepare("INSERT INTO gradings (rowid, explanation, message) VALUES (?, ?, ?)");
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
    for (const rows of [
      "texts WHERE rowid",
      "gradings WHERE rowid",
      "retries WHERE episode",
      "trajectories WHERE episode",
    ]) {
      database.prepare(`DELETE FROM ${rows} ${episodes}`).run([name]);
    }
    database.prepare("DELETE FROM details WHERE file = ?").run([name]);
    database.prepare("DELETE FROM files WHERE name = ?").run([name]);
    forgetProblems(database, pathOf(name));
  }

  function add(file: EpisodeFile, place: number, { offset, length }: PlacedLine, rows: EpisodeRows): void {
    const { episode, parts, retriedAfter, text: searched } = rows;
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
    if (explanation !== null || message !== null) {
      insertGrading.run([first, (explanation ?? "").slice(0, searchedLength), message ?? ""]);
    }
    for (const { kind: failure, boundary, message } of retriedAfter)
      insertRetry.run([first, failure, boundary, message]);
  }

  /** @returns whether everything that can be read is indexed */
  function indexFile(file: EpisodeFile, from: IndexedFile | undefined, until: number): boolean {
    let offset = from?.offset ?? 0;
    let rows = from?.rows ?? 0;
    let complete = true;
    const isRead = readOrNote(database, pathOf(file.name), () =>
      withInside(run, pathOf(file.name), (opened) => {
        for (const line of completeLines(opened, { offset, max: maxEpisodeBytes })) {
          const read = readRows(line);
          if (typeof read === "string") skipLine(database, pathOf(file.name), rows + 1, read);
          else if (read !== undefined) add(file, rows, line, read);
          rows++;
          offset = line.next;
          if (performance.now() > until) {
            complete = offset >= file.bytes;
            break;
          }
        }
        return true;
      }),
    );
    if (isRead !== true) {
      // What was added before a failure of the disk is not added again.
      if (offset > (from?.offset ?? 0)) putFile.run([file.name, file.mark, offset, rows]);
      return true;
    }
    if (complete && file.kind === "train") setSignal.run([file.step]);
    putFile.run([file.name, file.mark, complete ? file.bytes : offset, rows]);
    return complete;
  }

  /** Updates `files`, if the folder has changed. */
  function list(): void {
    const stat = lstatSync(folder, { throwIfNoEntry: false });
    const stamp = stat === undefined ? "none" : String(stat.mtimeMs);
    if (stamp === listed && stamp !== "none") return;
    files = stat?.isDirectory() ? listFiles(folder) : [];
    // A folder that has just changed may change again within the resolution of its time stamp.
    listed = Date.now() - Number(stamp) > 2000 ? stamp : "";
    const present = new Set(files.map(({ name }) => pathOf(name)));
    const noted = database.prepare("SELECT file FROM problems WHERE file GLOB ?").all([pathOf("*")]) as {
      file: string;
    }[];
    for (const { file } of noted) if (!present.has(file)) forgetProblems(database, file);
    if (stat !== undefined && !stat.isDirectory()) throw new UserError(`${folder} is not a folder, or it is a link`);
  }

  return {
    advance(until) {
      readOrNote(database, episodesFolder, list);
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

/** Undefined for an empty line; the reason if it is not an episode. */
function readRows({ text, length }: PlacedLine): EpisodeRows | string | undefined {
  if (text === undefined) return tooLong(length, maxEpisodeBytes);
  if (text.trim() === "") return undefined;
  try {
    return episodeRows(readEpisode(text));
  } catch (error) {
    return (error as Error).message;
  }
}

/** The newest steps first, because users look at these first. */
function listFiles(folder: string): EpisodeFile[] {
  const files = readdirSync(folder).flatMap((name): EpisodeFile[] => {
    const found = /^step-(\d{6,15})(-validation)?\.jsonl$/.exec(name);
    const stat = found && lstatSync(join(folder, name), { throwIfNoEntry: false });
    if (!found || !stat) return [];
    const step = Number(found[1]);
    const kind = found[2] ? "validation" : "train";
    if (name !== episodesFile(step, kind === "train" ? undefined : kind)) return [];
    const mark = `${stat.ino}:${stat.mtimeMs}:${stat.size}`;
    // Something else than a file is reported when it is opened.
    return [{ name, step, kind, mark, bytes: stat.isFile() ? stat.size : 1 }];
  });
  return files.sort((left, right) => right.step - left.step);
}

/** The columns of an episode. */
export interface EpisodeColumns {
  task: string;
  rollout: number;
  correct: number | null;
  termination: string;
  failure: string | null;
  boundary: string | null;
  message: string | null;
  explanation: string | null;
  tokens: number;
  turns: number;
  tools: number;
  seconds: number;
  retries: number;
  oldest: number | null;
  version: number | null;
  preview: string;
}

/** Columns of `trajectories`: those of the episode, and those of each of its trajectories. */
interface EpisodeRows {
  episode: EpisodeColumns;
  parts: TrajectoryColumns[];
  retriedAfter: { kind: string; boundary: string; message: string }[];
  /** For full text search. */
  text: string;
}

export interface TrajectoryColumns {
  role: string | null;
  instance: number | null;
  reward: StoredNumber;
  advantage: StoredNumber;
  part_tokens: number;
  part_turns: number;
}

const previewLength = 200;
/** Only this many characters of a text can be searched. */
const searchedLength = 1 << 20;

function episodeRows(episode: StoredEpisode): EpisodeRows {
  const { trajectories, failure } = episode;
  const steps = trajectories.flatMap((trajectory) => trajectory.steps);
  const sampled = steps.filter(({ policyVersion }) => policyVersion >= 0);
  const versions = sampled.flatMap(({ policyVersion, tokenVersions }) => [
    tokenVersions?.[0] ?? policyVersion,
    policyVersion,
  ]);
  const parts = trajectories.map(trajectoryColumns);
  return {
    episode: {
      task: episode.taskId,
      rollout: episode.rollout,
      correct: episode.correct === null || episode.correct === undefined ? null : Number(episode.correct),
      termination: episode.termination,
      failure: failure?.kind ?? null,
      boundary: failure?.boundary ?? null,
      message: failure === undefined ? null : cutText(failure.message),
      explanation: episode.explanation ?? null,
      tokens: steps.reduce((sum, { tokens }) => sum + tokens.length, 0),
      turns: steps.length,
      tools: steps.reduce((sum, { reply }) => sum + (reply?.toolCalls.length ?? 0), 0),
      seconds: episode.seconds,
      retries: episode.retries,
      oldest: versions.length === 0 ? null : Math.min(...versions),
      version: versions.length === 0 ? null : Math.max(...versions),
      preview: (lastStep(trajectories)?.text ?? "")
        .slice(0, 4 * previewLength)
        .replaceAll(/\s+/g, " ")
        .trim()
        .slice(0, previewLength),
    },
    parts: parts.length > 0 ? parts : [noTrajectory],
    retriedAfter: (episode.retriedAfter ?? []).map((each) => ({ ...each, message: cutText(each.message) })),
    text: searchedText(episode).slice(0, searchedLength),
  };
}

const noTrajectory = { role: null, instance: null, reward: null, advantage: null, part_tokens: 0, part_turns: 0 };

function trajectoryColumns(trajectory: StoredTrajectory): TrajectoryColumns {
  const { name, instance, reward, steps } = trajectory;
  return {
    role: name,
    instance: instance ?? null,
    reward: stored(reward),
    advantage: stored(meanAdvantage(trajectory)),
    part_tokens: steps.reduce((sum, { tokens }) => sum + tokens.length, 0),
    part_turns: steps.length,
  };
}

/** Null if it was not trained on. */
function meanAdvantage(trajectory: StoredTrajectory): number | null {
  const { advantage, steps } = trajectory;
  if (typeof advantage === "number") return advantage;
  const values = steps.flatMap(({ tokens }, index) => tokenAdvantages(trajectory, index, tokens.length) ?? []);
  return values.length === 0 ? null : mean(values);
}

/** Each message only once, because the last prompt of a conversation repeats the earlier ones. */
function searchedText({ row, trajectories, explanation, failure }: StoredEpisode): string {
  const texts = new Set<string>();
  for (const { steps } of trajectories) {
    for (const { messages, text } of steps) {
      for (const { content, reasoning } of messages) {
        texts.add(describeContent(content));
        if (reasoning) texts.add(reasoning);
      }
      texts.add(text);
    }
  }
  return [...texts, explanation ?? "", failure?.message ?? "", row === undefined ? "" : toJson(row)].join("\n");
}

// Adds the new lines of a file of the run folder to the index.

interface Followed {
  /** Identifies the file. A different file is indexed from its beginning. */
  inode: number;
  offset: number;
  /** Lines before the offset. */
  lines: number;
  /** The size of the file when all its complete lines had been read. */
  size: number;
}

interface LinesOptions<Read> {
  /** Removes what the file's earlier lines added. */
  forget: () => void;
  /** @throws Error with a clause about what is wrong: the line is skipped, and counted */
  read: (text: string) => Read;
  add: (read: Read, line: PlacedLine) => void;
}

const nothing: Followed = { inode: 0, offset: 0, lines: 0, size: 0 };

/** @returns whether everything is indexed */
export function followLines<Read>(
  database: IndexDatabase,
  run: string,
  name: string,
  until: number,
  options: LinesOptions<Read>,
): boolean {
  const opened = readOrNote(database, name, () => ({ file: openInside(run, name) }));
  if (opened === undefined) return true;
  const { file } = opened;
  try {
    return follow(database, name, until, file, options);
  } finally {
    if (file !== undefined) closeSync(file.handle);
  }
}

function follow<Read>(
  database: IndexDatabase,
  name: string,
  until: number,
  file: OpenFile | undefined,
  { forget, read, add }: LinesOptions<Read>,
): boolean {
  const { ino: inode, size } = file?.stat ?? { ino: 0, size: 0 };
  let state = readState<Followed>(database, name) ?? nothing;
  // The file was replaced: a resumed run rewrites metrics.jsonl without the steps that it repeats.
  if (inode !== state.inode || size < state.offset) {
    forget();
    forgetProblems(database, name);
    state = { ...nothing, inode };
    writeState(database, name, state);
  }
  if (file === undefined || size <= state.offset || size === state.size) return true;
  let complete = true;
  for (const line of completeLines(file, { offset: state.offset })) {
    state = { ...state, offset: line.next, lines: state.lines + 1 };
    const found = tryRead(read, line);
    if ("read" in found) add(found.read, line);
    else skipLine(database, name, state.lines, found.reason);
    if (performance.now() > until) {
      complete = line.next >= size;
      break;
    }
  }
  writeState(database, name, { ...state, size: complete ? size : 0 });
  return complete;
}

function tryRead<Read>(
  read: (text: string) => Read,
  { text, length }: PlacedLine,
): { read: Read } | { reason: string } {
  if (text === undefined) return { reason: tooLong(length) };
  try {
    return { read: read(text) };
  } catch (error) {
    return { reason: (error as Error).message };
  }
}

// What of a run folder cannot be read. It is kept in the index, so that it is known without reading the files again.

/** A file of which something cannot be read. */
export interface FileProblem {
  /** Within the run folder. */
  file: string;
  /** The number of lines that are skipped; 0: the whole file cannot be read. */
  lines: number;
  /** The number of the first of them, from 1. */
  first: number | null;
  /** What is wrong with the first of them, or with the file. */
  reason: string;
}

/** Counts a line that is skipped. @param number from 1 */
function skipLine(database: IndexDatabase, file: string, number: number, reason: string): void {
  database
    .prepare(
      "INSERT INTO problems (file, lines, first, reason) VALUES (?, 1, ?, ?) ON CONFLICT DO UPDATE SET lines = lines + 1",
    )
    .run([file, number, reason]);
}

function forgetProblems(database: IndexDatabase, file: string): void {
  database.prepare("DELETE FROM problems WHERE file = ?").run([file]);
}

/**
 * Reads a file. A failure becomes the file's problem until the next call succeeds.
 * @returns what `read` returns; undefined if it fails
 * @throws errors of the index
 */
function readOrNote<Result>(database: IndexDatabase, file: string, read: () => Result): Result | undefined {
  try {
    const result = read();
    database.prepare("DELETE FROM problems WHERE file = ? AND lines = 0").run([file]);
    return result;
  } catch (error) {
    const { reason } = unreadable(file, error);
    // Without a change the index keeps its revision.
    database
      .prepare(
        `INSERT INTO problems (file, lines, first, reason) VALUES (?, 0, NULL, ?)
         ON CONFLICT DO UPDATE SET lines = 0, first = NULL, reason = excluded.reason WHERE reason <> excluded.reason`,
      )
      .run([file, reason]);
    return undefined;
  }
}

/** The problem of a file that cannot be read. @throws the error if it is not about the file */
export function unreadable(file: string, error: unknown): FileProblem {
  const known = readable(error);
  if (!(known instanceof HoneError)) throw error;
  return { file, lines: 0, first: null, reason: known.message };
}

/** At most 100; files that cannot be read at all first. */
export const readProblems = (database: IndexDatabase): FileProblem[] =>
  database
    .prepare("SELECT file, lines, first, reason FROM problems ORDER BY lines > 0, file LIMIT 100")
    .all([]) as unknown as FileProblem[];

/** A sentence about the first of them; undefined if there are none. */
export function describeProblems([first, ...others]: readonly FileProblem[]): string | undefined {
  if (first === undefined) return undefined;
  const { file, lines, reason } = first;
  const rest =
    others.length === 0 ? "" : `; ${others.length} more ${others.length === 1 ? "file has" : "files have"} problems`;
  if (lines === 0) return `${reason}${rest}`;
  const skipped =
    lines === 1 ? `line ${first.first} is skipped` : `${lines} lines are skipped, the first is line ${first.first}`;
  return `${file}: ${skipped}: ${reason}${rest}`;
}
