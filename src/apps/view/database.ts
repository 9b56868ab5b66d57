/** A run's index: its file in the user's cache (the run folder is never written to), its tables, and what it stores as JSON. */
import { createHash } from "node:crypto";
import {
  accessSync,
  closeSync,
  constants,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  realpathSync,
  rmSync,
  statSync,
  utimesSync,
} from "node:fs";
import { homedir, tmpdir } from "node:os";
import { dirname, join } from "node:path";
import Database from "libsql";
import { makeFolder } from "../../base/files.ts";
import { beginningOf, printable } from "../../base/text.ts";

export type IndexDatabase = Database.Database;

/** `$XDG_CACHE_HOME/hone/view`; a temporary folder, with one line on stderr, if that cannot be written. */
export function defaultCache(): string {
  try {
    const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "hone", "view");
    makeFolder(cache, 0o700);
    accessSync(cache, constants.W_OK);
    return cache;
  } catch (error) {
    const cache = temporaryCache();
    process.stderr.write(`the viewer's index is in ${cache}: ${printable((error as Error).message)}\n`);
    return cache;
  }
}

/** A folder that belongs to this user, because other users can write to the folder of temporary files, too. */
function temporaryCache(): string {
  const folder = join(tmpdir(), `hone-view-${process.getuid?.() ?? "user"}`);
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const { uid, mode } = lstatSync(folder);
  const isMine = uid === (process.getuid?.() ?? uid) && (mode & 0o777) === 0o700;
  return isMine ? folder : mkdtempSync(join(tmpdir(), "hone-view-"));
}

const unusedDays = 30;

/** @param cache the folder of all indexes */
export function databaseFile(run: string, cache: string): string {
  const name = createHash("sha256").update(realpathSync(run)).digest("hex").slice(0, 32);
  return join(cache, `${name}.db`);
}

/** Opens an index, or begins a new one if it is missing, damaged or of another version. */
export function openDatabase(file: string): IndexDatabase {
  makeFolder(dirname(file), 0o700);
  try {
    return open(file);
  } catch {
    removeDatabase(file);
    return open(file);
  }
}

function open(file: string): IndexDatabase {
  closeSync(openSync(file, "a", 0o600));
  const now = new Date();
  utimesSync(file, now, now);
  const database = new Database(file);
  try {
    database.exec("PRAGMA busy_timeout = 10000");
    database.exec("PRAGMA journal_mode = WAL");
    // What a power failure loses is indexed again.
    database.exec("PRAGMA synchronous = OFF");
    database.exec("PRAGMA cache_size = -40000");
    database.exec("BEGIN IMMEDIATE");
    const { user_version: version } = database.prepare("PRAGMA user_version").get() as { user_version: number };
    if (version === 0) database.exec(schema);
    database.exec("COMMIT");
    if (version !== 0 && version !== schemaVersion) throw new Error("another version");
    return database;
  } catch (error) {
    database.close();
    throw error;
  }
}

/** Removes an index with its log and shared memory. */
export function removeDatabase(file: string): void {
  for (const suffix of ["", "-wal", "-shm"]) rmSync(`${file}${suffix}`, { force: true });
}

/** Removes indexes that were not opened for a month. */
export function removeUnused(cache: string): void {
  const now = Date.now();
  makeFolder(cache, 0o700);
  for (const name of readdirSync(cache).filter((each) => each.endsWith(".db"))) {
    const file = join(cache, name);
    const age = now - (statSync(file, { throwIfNoEntry: false })?.mtimeMs ?? now);
    if (age > unusedDays * 86_400_000) removeDatabase(file);
  }
}

/** SQLite has no NaN: it is stored as text, as in JSON. */
export type StoredNumber = number | string | null;

export const stored = (value: number | null | undefined): StoredNumber =>
  value === null || value === undefined ? null : Number.isFinite(value) ? value : String(value);

const maxTextLength = 10_000;
/** Lists show many messages, so each has a limit. */
export const cutText = (text: string) => beginningOf(text, maxTextLength);

// Small values: how far each file is read, and what the journal says about the run.

export function readState<Value>(database: IndexDatabase, name: string): Value | undefined {
  const row = database.prepare("SELECT value FROM state WHERE name = ?").get([name]) as { value: string } | undefined;
  return row === undefined ? undefined : (JSON.parse(row.value) as Value);
}

export function writeState(database: IndexDatabase, name: string, value: unknown): void {
  database.prepare("INSERT OR REPLACE INTO state (name, value) VALUES (?, ?)").run([name, JSON.stringify(value)]);
}

/** The index is built from the run folder, and rebuilt whenever this version changes. */
const schemaVersion = 6;

/**
 * `trajectories` has one row for each trajectory of an episode. Each row repeats the columns of the episode, so that a
 * filter is a single scan of short rows. `part` is the number of the trajectory, and `episode` is the row of part 0. An
 * episode without trajectories has one row, with part 0. `details` has the columns that lists show but few filters use.
 * `texts` finds consecutive words. `gradings` finds any part of an explanation or of a failure's message by its sequences of three
 * characters: over 25,600 episodes, `explanation~expected` takes 23 ms instead of 63 ms, a rare text 9 ms instead of 39 ms. `problems` has the lines that are skipped; 0 lines:
 * the whole file cannot be read.
 * Lists can be sorted by reward in both directions, with the newest step first among equal rewards; each has its own index.
 */
const schema = `
CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE files (name TEXT PRIMARY KEY, mark TEXT NOT NULL, offset INTEGER NOT NULL, rows INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE trajectories (
  row INTEGER PRIMARY KEY AUTOINCREMENT, episode INTEGER NOT NULL, part INTEGER NOT NULL,
  key TEXT NOT NULL, place INTEGER NOT NULL,
  step INTEGER NOT NULL, kind TEXT NOT NULL, task TEXT NOT NULL, rollout INTEGER NOT NULL,
  role TEXT, instance INTEGER, reward, advantage, part_tokens INTEGER NOT NULL, part_turns INTEGER NOT NULL,
  signal INTEGER, correct INTEGER, termination TEXT NOT NULL,
  failure TEXT, boundary TEXT,
  tokens INTEGER NOT NULL, turns INTEGER NOT NULL, tools INTEGER NOT NULL, seconds REAL NOT NULL, retries INTEGER NOT NULL,
  oldest INTEGER, version INTEGER
);
CREATE INDEX by_episode ON trajectories (episode, part);
CREATE INDEX by_key ON trajectories (key);
CREATE INDEX by_place ON trajectories (step, kind, place, part);
CREATE INDEX by_part ON trajectories (part, step, kind);
CREATE INDEX by_reward ON trajectories (part, reward, step DESC, place);
CREATE INDEX by_reward_down ON trajectories (part, reward DESC, step DESC, place);
CREATE INDEX by_role ON trajectories (role);
CREATE INDEX by_task ON trajectories (task, kind, step);
CREATE TABLE details (
  episode INTEGER PRIMARY KEY, file TEXT NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL,
  message TEXT, explanation TEXT, preview TEXT NOT NULL
);
CREATE INDEX by_file ON details (file);
CREATE VIRTUAL TABLE texts USING fts5(text, tokenize = "unicode61 remove_diacritics 0");
CREATE VIRTUAL TABLE gradings USING fts5(
  explanation, message, content = "", contentless_delete = 1, tokenize = "trigram"
);
CREATE TABLE retries (episode INTEGER NOT NULL, failure TEXT NOT NULL, boundary TEXT NOT NULL, message TEXT NOT NULL);
CREATE INDEX retries_by_episode ON retries (episode);
CREATE TABLE names (name INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE steps (
  kind TEXT NOT NULL, step INTEGER NOT NULL, epoch INTEGER, time REAL, PRIMARY KEY (kind, step)
) WITHOUT ROWID;
CREATE TABLE points (
  kind TEXT NOT NULL, name INTEGER NOT NULL, step INTEGER NOT NULL, value, PRIMARY KEY (kind, name, step)
) WITHOUT ROWID;
CREATE TABLE marks (seq INTEGER PRIMARY KEY, offset INTEGER NOT NULL);
CREATE TABLE phases (step INTEGER NOT NULL, name TEXT NOT NULL, began REAL NOT NULL, ended REAL NOT NULL);
CREATE INDEX phases_by_time ON phases (ended);
CREATE TABLE windows (
  kind TEXT NOT NULL, step INTEGER NOT NULL, began REAL NOT NULL, ended REAL, PRIMARY KEY (kind, step)
) WITHOUT ROWID;
CREATE TABLE rollouts (
  kind TEXT NOT NULL, step INTEGER NOT NULL, task TEXT NOT NULL, rollout INTEGER NOT NULL, queued REAL NOT NULL,
  ended REAL, outcome TEXT, retries INTEGER NOT NULL, reward, first INTEGER NOT NULL, last INTEGER
);
CREATE INDEX rollouts_by_name ON rollouts (kind, task, rollout);
CREATE INDEX rollouts_by_end ON rollouts (ended);
CREATE TABLE weights (time REAL NOT NULL, version INTEGER NOT NULL, step INTEGER NOT NULL);
CREATE TABLE notes (time REAL NOT NULL, kind TEXT NOT NULL, step INTEGER, text TEXT NOT NULL);
CREATE TABLE problems (file TEXT PRIMARY KEY, lines INTEGER NOT NULL, first INTEGER, reason TEXT NOT NULL) WITHOUT ROWID;
PRAGMA user_version = ${schemaVersion};
`;
