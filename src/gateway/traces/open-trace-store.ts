/** The trace store as the gateway and the `hone traces` command hold it. */
import { createCheckpointer } from "./checkpointer.ts";
import { defaultTracePath, expandHome, openTraceDatabase } from "./database.ts";
import { deleteBefore, listSessions, readTrace, readTraces, type TraceFilter } from "./trace-reader.ts";
import { createTraceWriter, type TraceWriter } from "./trace-writer.ts";
import type { SessionSummary, Trace } from "./types.ts";

export interface TraceStore extends TraceWriter {
  sessions(filter?: TraceFilter): SessionSummary[];
  /** The calls of one attempt in the order in which they began. */
  traces(of: { session: string; attempt: number; project?: string }): Trace[];
  find(id: string): Trace | undefined;
  /** What began before it goes. */
  deleteBefore(beforeMs: number): { sessions: number; traces: number };
}

export interface TraceStoreOptions {
  /** A file, or ":memory:". Default `~/.rllm/traces.db`. */
  path?: string;
  /** Default "default". */
  project?: string;
  /** False: a file that does not exist is an error. Default true. */
  create?: boolean;
  /** At opening, what is older goes. Default: everything is kept. */
  retentionDays?: number | null;
  /** See `TraceWriterOptions`. */
  flushMs?: number;
  onProblem?: (text: string) => void;
}

/**
 * @throws UserError when the file cannot be opened or is no trace store
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
    ...(options.flushMs === undefined ? {} : { flushMs: options.flushMs }),
    onProblem,
  });
  return {
    trace: writer.trace,
    session: writer.session,
    flush: writer.flush,
    get counts() {
      return writer.counts;
    },
    // What is asked for includes what was recorded just now.
    sessions(filter) {
      writer.flush();
      return listSessions(database, filter);
    },
    traces(of) {
      writer.flush();
      return readTraces(database, of);
    },
    find(id) {
      writer.flush();
      return readTrace(database, id);
    },
    deleteBefore(beforeMs) {
      writer.flush();
      return deleteBefore(database, beforeMs);
    },
    close() {
      writer.close();
      checkpointer?.close();
      database.close();
    },
  };
}
