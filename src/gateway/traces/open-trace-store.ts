/** The trace store of the gateway and of `hone traces`. */

import { defaultTracePath, expandHome, openTraceDatabase, type TraceDatabase } from "./database.ts";
import { deleteBefore, listSessions, readTrace, readTraces, type TraceFilter } from "./trace-reader.ts";
import { createCheckpointer, createTraceWriter, type TraceWriter } from "./trace-writer.ts";
import type { SessionSummary, Trace } from "./types.ts";

/** Recorded model calls: written by a gateway, read by session and attempt. */
export interface TraceStore extends TraceWriter {
  sessions(filter?: TraceFilter): SessionSummary[];
  /** The calls of one attempt in the order of their start. */
  traces(of: { session: string; attempt: number; project?: string }): Trace[];
  find(id: string): Trace | undefined;
  /** Deletes what began before. */
  deleteBefore(beforeMs: number): { sessions: number; traces: number };
}

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
