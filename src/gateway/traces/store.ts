/** The trace store of the gateway and of `hone traces`: one SQLite file, written without delaying calls. read.ts has its queries. */
import { closeSync, existsSync, openSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { Worker } from "node:worker_threads";
import Database from "libsql";
import { HoneError, messageOf, UserError } from "../../base/errors.ts";
import { makeFolder, makePrivate } from "../../base/files.ts";
import type { Trace, TraceDatabase, TraceSession, TraceStore, TraceWriter } from "../types.ts";
import { deleteBefore, listSessions, readTrace, readTraces } from "./read.ts";

export interface TraceStoreOptions {
  /** A file, or ":memory:". Default `~/.rllm/traces.db`. */
  path?: string;
  /** Default "default". */
  project?: string;
  /** False: a file that does not exist is an error. Default true. */
  create?: boolean;
  /** Older records are deleted when the store is opened. Default: all are kept. */
  retentionDays?: number | null;
  /** See `TraceWriterOptions`. */
  flushMs?: number | undefined;
  onProblem?: (text: string) => void;
}

/**
 * Opens the SQLite database of recorded model calls.
 *
 * @throws UserError when the file cannot be opened or is not a trace store
 *
 * @example
 * const store = openTraceStore({ path: "traces.db", create: false });
 * for (const { session, attempt } of store.sessions({ minReward: 1 })) store.traces({ session, attempt });
 */
export function openTraceStore(options: TraceStoreOptions = {}): TraceStore {
  const { path = defaultTracePath, project = "default", create = true, retentionDays = null } = options;
  const database = openTraceDatabase(path, { create });
  if (retentionDays !== null) deleteBefore(database, Date.now() - retentionDays * 86_400_000);
  const onProblem = options.onProblem ?? ((text) => process.emitWarning(text));
  const checkpointer = path === ":memory:" ? undefined : createCheckpointer(expandHome(path), onProblem);
  const writer = createTraceWriter(database, {
    project,
    onWritten: (rows) => checkpointer?.wrote(rows),
    flushMs: options.flushMs,
    onProblem,
  });
  /** Queries include what was recorded just before. */
  const afterFlush =
    <Parameters extends unknown[], Result>(query: (database: TraceDatabase, ...parameters: Parameters) => Result) =>
    (...parameters: Parameters): Result => {
      writer.flush();
      return query(database, ...parameters);
    };
  return {
    trace: writer.trace,
    session: writer.session,
    flush: writer.flush,
    get counts() {
      return writer.counts;
    },
    sessions: afterFlush(listSessions),
    traces: afterFlush(readTraces),
    find: afterFlush(readTrace),
    deleteBefore: afterFlush(deleteBefore),
    close() {
      writer.close();
      checkpointer?.close();
      database.close();
    },
  };
}

// Writes traces without delaying calls: records wait in memory for at most `flushMs` and are then written in one
// transaction. A killed process loses at most those, and nothing for which `flush` has returned.

export interface TraceWriterOptions {
  /** Stored with every record, because several runs can share a file. */
  project: string;
  /** Default 50. */
  flushMs?: number | undefined;
  /** Called with the number of rows after each commit. */
  onWritten?: (rows: number) => void;
  /** Called once for each batch that is lost. */
  onProblem: (text: string) => void;
}

/** This many records are written immediately, so memory is bounded. */
const maxWaiting = 2000;
const maxTries = 3;

type Statement = ReturnType<TraceDatabase["prepare"]>;
type Row = (string | number | bigint | Buffer | null)[];

export function createTraceWriter(
  database: TraceDatabase,
  { project, flushMs = 50, onWritten, onProblem }: TraceWriterOptions,
): TraceWriter {
  const insertTrace = database.prepare(
    `INSERT OR IGNORE INTO traces (id, project, session, attempt, role, api, model, started_ms, latency_ms, status, error,
      stop_reason, policy_version, messages, tools, reply, params, metadata, prompt_tokens, tokens, logprobs)
     VALUES (${placeholders(21)})`,
  );
  const putSession = database.prepare(
    `INSERT OR REPLACE INTO sessions (project, session, attempt, started_ms, ended_ms, task_id, termination, reward,
      correct, failure, metadata) VALUES (${placeholders(11)})`,
  );
  const fresh: { statement: Statement; toRow: () => Row }[] = [];
  const waiting: { statement: Statement; row: Row }[] = [];
  const counts = { written: 0, lost: 0 };
  let tries = 0;
  let timer: NodeJS.Timeout | undefined;

  function lose(count: number, error: unknown): void {
    counts.lost += count;
    onProblem(`${count} traces could not be written and are lost: ${messageOf(error)}`);
  }

  function flush(): void {
    clearTimeout(timer);
    timer = undefined;
    makeRows();
    if (waiting.length === 0) return;
    try {
      database.exec("BEGIN IMMEDIATE");
      try {
        for (const { statement, row } of waiting) statement.run(row);
        database.exec("COMMIT");
      } catch (error) {
        database.exec("ROLLBACK");
        throw error;
      }
      const rows = waiting.length;
      counts.written += rows;
      waiting.length = 0;
      onWritten?.(rows);
      tries = 0;
    } catch (error) {
      tries++;
      if (tries < maxTries) {
        timer = setTimeout(flush, flushMs * 10 ** tries).unref();
        return;
      }
      lose(waiting.length, error);
      waiting.length = 0;
      tries = 0;
    }
  }

  /** Soon after each call is answered: the garbage collector needs more time for waiting objects than writing takes. */
  function makeRows(): void {
    for (const { statement, toRow } of fresh.splice(0)) {
      try {
        waiting.push({ statement, row: toRow() });
      } catch (error) {
        lose(1, error);
      }
    }
  }

  function add(statement: Statement, toRow: () => Row): void {
    fresh.push({ statement, toRow });
    if (fresh.length === 1) setImmediate(makeRows).unref();
    if (waiting.length + fresh.length >= maxWaiting) flush();
    else timer ??= setTimeout(flush, flushMs).unref();
  }

  return {
    trace: (trace) => add(insertTrace, () => traceRow(project, trace)),
    session: (session) => add(putSession, () => sessionRow(project, session)),
    flush() {
      for (let attempt = 0; waiting.length + fresh.length > 0 && attempt < maxTries; attempt++) flush();
    },
    get counts() {
      return { waiting: waiting.length + fresh.length, ...counts };
    },
    close() {
      this.flush();
      clearTimeout(timer);
    },
  };
}

const placeholders = (count: number) => Array.from({ length: count }, () => "?").join(", ");
const json = (value: unknown) => (value === undefined || value === null ? null : JSON.stringify(value));
const bytes = (array: Int32Array | Float32Array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength);

function traceRow(project: string, trace: Trace): Row {
  return [
    trace.id,
    project,
    trace.session,
    trace.attempt,
    trace.role,
    trace.api,
    trace.model,
    trace.startedMs,
    trace.latencyMs,
    trace.status,
    trace.error,
    trace.stopReason,
    trace.policyVersion,
    json(trace.messages) ?? "null",
    json(trace.tools),
    json(trace.reply),
    JSON.stringify(trace.params),
    JSON.stringify(trace.metadata),
    bytes(trace.promptTokens),
    bytes(trace.tokens),
    bytes(trace.logprobs),
  ];
}

function sessionRow(project: string, session: TraceSession): Row {
  return [
    project,
    session.session,
    session.attempt,
    session.startedMs,
    session.endedMs,
    session.taskId,
    session.termination,
    session.reward,
    session.correct === null ? null : Number(session.correct),
    session.failure,
    JSON.stringify(session.metadata),
  ];
}

/** Copies the write-ahead log back into the database on another thread, because waiting for the disk would delay calls. */
interface Checkpointer {
  /** Counts the rows and starts copying from time to time. */
  wrote(rows: number): void;
  close(): void;
}

/** About 4 MiB of short calls. */
const rowsBetween = 1000;

const runner = `
const { parentPort, workerData } = require("node:worker_threads");
const Database = require(workerData.library);
const database = new Database(workerData.file);
database.exec("PRAGMA busy_timeout = 1000");
parentPort.on("message", (message) => {
  if (message === "close") {
    database.close();
    parentPort.close();
    return;
  }
  let problem;
  try {
    database.prepare("PRAGMA wal_checkpoint(PASSIVE)").get();
  } catch (error) {
    problem = String(error);
  }
  parentPort.postMessage({ problem });
});
`;

/** @param onProblem called once, if copying fails and so is left to the writer's thread */
export function createCheckpointer(file: string, onProblem: (text: string) => void): Checkpointer {
  let worker: Worker | undefined;
  let broken = false;
  let rows = 0;
  let busy = false;

  function giveUp(problem: string): void {
    if (broken) return;
    broken = true;
    onProblem(`the trace store's log is not copied in the background: ${problem}`);
    void worker?.terminate();
    worker = undefined;
  }

  function start(): Worker {
    const library = createRequire(import.meta.url).resolve("libsql");
    const started = new Worker(runner, { eval: true, workerData: { library, file }, execArgv: [] });
    started.unref();
    started.on("message", ({ problem }: { problem?: string }) => {
      busy = false;
      if (problem !== undefined) giveUp(problem);
    });
    started.on("error", (error) => giveUp(error.message));
    return started;
  }

  return {
    wrote(count) {
      rows += count;
      if (rows < rowsBetween || busy || broken) return;
      rows = 0;
      busy = true;
      worker ??= start();
      worker.postMessage("copy");
    },
    close() {
      broken = true;
      worker?.postMessage("close");
      worker = undefined;
    },
  };
}

// The file: its tables, and opening it.

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
  // `createCheckpointer` copies the log back on another thread. This is the fallback if it falls far behind.
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
