/** The trace store's file: its tables, and opening it. */
import { closeSync, existsSync, openSync, statSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import Database from "libsql";
import { HoneError, messageOf, UserError } from "../../errors.ts";
import { makePrivate } from "../../files/durable-files.ts";
import { makeFolder } from "../../files/make-folder.ts";

export type TraceDatabase = Database.Database;

/** Increased with every change of the tables. Files of other versions are refused. */
const schemaVersion = 1;

const schema = `
CREATE TABLE sessions (
  project TEXT NOT NULL, session TEXT NOT NULL, attempt INTEGER NOT NULL,
  started_ms REAL NOT NULL, ended_ms REAL, task_id TEXT, termination TEXT, reward REAL, correct INTEGER, failure TEXT,
  metadata TEXT NOT NULL,
  PRIMARY KEY (project, session, attempt)
);
CREATE INDEX sessions_by_time ON sessions (started_ms);
CREATE TABLE traces (
  number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
  project TEXT NOT NULL, session TEXT NOT NULL, attempt INTEGER NOT NULL, role TEXT NOT NULL,
  api TEXT NOT NULL, model TEXT NOT NULL, started_ms REAL NOT NULL, latency_ms REAL NOT NULL,
  status TEXT NOT NULL, error TEXT, stop_reason TEXT, policy_version INTEGER,
  messages TEXT NOT NULL, tools TEXT, reply TEXT, params TEXT NOT NULL, metadata TEXT NOT NULL,
  prompt_tokens BLOB NOT NULL, tokens BLOB NOT NULL, logprobs BLOB NOT NULL
);
CREATE INDEX traces_by_session ON traces (project, session, attempt);
CREATE INDEX traces_by_time ON traces (started_ms);
PRAGMA user_version = ${schemaVersion};
`;

/** The default of `rllm.sdk.store.path`. */
export const defaultTracePath = "~/.rllm/traces.db";

/** Replaces `~` by the user's home. */
export const expandHome = (path: string): string =>
  path === "~" || path.startsWith("~/") ? join(homedir(), path.slice(1)) : path;

/**
 * The write-ahead log keeps the file of a killed process intact and lets others read while this process writes.
 *
 * @throws UserError when the file cannot be opened, or is not a trace store of this version
 */
export function openTraceDatabase(path: string, { create }: { create: boolean }): TraceDatabase {
  const file = path === ":memory:" ? path : expandHome(path);
  try {
    const found = statSync(file, { throwIfNoEntry: false });
    if (!create && found === undefined) throw new Error("the file does not exist");
    // A FIFO would block, and a device has no end.
    if (found?.isFile() === false) throw new Error("it is not a regular file");
    if (create && file !== ":memory:") makeFile(file);
    const database = new Database(file);
    try {
      prepare(database, file);
    } catch (error) {
      database.close();
      throw error;
    }
    return database;
  } catch (error) {
    if (error instanceof HoneError) throw error;
    throw new UserError(`the trace store ${file} cannot be opened: ${messageOf(error)}`, {
      hint: "use another file with rllm.sdk.store.path (or --store)",
      cause: error,
    });
  }
}

/** Readable by its owner only. SQLite gives its log and index the same permissions. */
function makeFile(file: string): void {
  makeFolder(dirname(file), 0o700);
  closeSync(openSync(file, "a", 0o600));
  for (const each of [file, `${file}-wal`, `${file}-shm`]) if (existsSync(each)) makePrivate(each, 0o600);
}

function prepare(database: TraceDatabase, file: string): void {
  database.exec("PRAGMA busy_timeout = 20000");
  database.exec("PRAGMA journal_mode = WAL");
  // Commits do not wait for the disk: a killed process does not lose them, but a power failure may lose the last ones.
  database.exec("PRAGMA synchronous = NORMAL");
  // checkpointer.ts copies the log back on another thread. This is the fallback if it falls far behind.
  database.exec("PRAGMA wal_autocheckpoint = 16000");
  const version = versionOf(database);
  if (version === schemaVersion) return;
  const tables = database.prepare("SELECT count(*) AS tables FROM sqlite_master").get() as { tables: number };
  if (version !== 0 || tables.tables > 0) {
    throw new UserError(`${file} is not a trace store of this version of Hone`, {
      hint: "use another file with rllm.sdk.store.path (or --store), or move this one away",
    });
  }
  database.exec("BEGIN IMMEDIATE");
  // Another process may have created the tables first.
  if (versionOf(database) === 0) database.exec(schema);
  database.exec("COMMIT");
}

const versionOf = (database: TraceDatabase) =>
  (database.prepare("PRAGMA user_version").get() as { user_version: number }).user_version;
