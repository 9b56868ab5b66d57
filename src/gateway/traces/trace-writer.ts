/**
 * Writes traces without delaying calls: records wait in memory for at most `flushMs` and are then written in one
 * transaction. A killed process loses at most those, and nothing for which `flush` has returned.
 */
import { createRequire } from "node:module";
import { Worker } from "node:worker_threads";
import { messageOf } from "../../errors.ts";
import type { TraceDatabase } from "./database.ts";
import type { Trace, TraceSession } from "./types.ts";

export interface TraceWriter {
  trace(trace: Trace): void;
  /** Records that a session began or ended. The last record of an attempt replaces earlier ones. */
  session(session: TraceSession): void;
  /** Writes all waiting records. */
  flush(): void;
  /** `lost`: dropped because the file could not be written three times in a row. */
  readonly counts: { waiting: number; written: number; lost: number };
  close(): void;
}

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
