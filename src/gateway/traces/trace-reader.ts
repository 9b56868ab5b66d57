/** Queries of the trace store. */
import { UserError } from "../../errors.ts";
import type { TraceDatabase } from "./database.ts";
import type { SessionSummary, Trace } from "./types.ts";

export interface TraceFilter {
  /** Only traces of this run, or of all runs of this project: `"sums"` includes `"sums/2026-01-01-default"`. */
  project?: string | undefined;
  session?: string | undefined;
  attempt?: number | undefined;
  /** Milliseconds since 1970: sessions that began then or later. */
  sinceMs?: number | undefined;
  /** Sessions whose reward is known and at least this. */
  minReward?: number | undefined;
  /** The number of sessions; the newest are returned. */
  limit?: number | undefined;
}

type Row = Record<string, string | number | null | Buffer>;
type Parameter = string | number;

/** @returns the newest sessions, oldest first, including sessions that have only calls */
export function listSessions(database: TraceDatabase, filter: TraceFilter = {}): SessionSummary[] {
  const { sql, parameters } = conditions(filter);
  const rows = database
    .prepare(
      `WITH known AS (
         SELECT project, session, attempt, started_ms, ended_ms, task_id, termination, reward, correct, failure, metadata
           FROM sessions
         UNION ALL
         SELECT project, session, attempt, min(started_ms), NULL, NULL, NULL, NULL, NULL, NULL, '{}' FROM traces
           WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.project = traces.project
             AND sessions.session = traces.session AND sessions.attempt = traces.attempt)
           GROUP BY project, session, attempt
       )
       SELECT known.*, count(traces.number) AS calls, coalesce(sum(traces.status <> 'ok'), 0) AS unanswered,
         coalesce(sum(length(traces.prompt_tokens)), 0) / 4 AS prompt_count,
         coalesce(sum(length(traces.tokens)), 0) / 4 AS sampled_count
       FROM known LEFT JOIN traces USING (project, session, attempt) ${sql}
       GROUP BY known.project, known.session, known.attempt
       ORDER BY known.started_ms DESC, known.session DESC, known.attempt DESC LIMIT ?`,
    )
    .all(...parameters, filter.limit ?? -1) as Row[];
  return rows.reverse().map((row) => ({
    session: String(row.session),
    attempt: Number(row.attempt),
    startedMs: Number(row.started_ms),
    endedMs: row.ended_ms as number | null,
    taskId: row.task_id as string | null,
    termination: row.termination as string | null,
    reward: row.reward as number | null,
    correct: row.correct === null ? null : row.correct === 1,
    failure: row.failure as string | null,
    metadata: parse(row.metadata) as SessionSummary["metadata"],
    calls: Number(row.calls),
    unanswered: Number(row.unanswered),
    promptTokens: Number(row.prompt_count),
    sampledTokens: Number(row.sampled_count),
  }));
}

/** @returns the calls of one attempt in the order of their start */
export function readTraces(
  database: TraceDatabase,
  { session, attempt, project }: { session: string; attempt: number; project?: string },
): Trace[] {
  const rows = database
    .prepare(
      "SELECT * FROM traces WHERE session = ? AND attempt = ? AND project = coalesce(?, project) ORDER BY started_ms, number",
    )
    .all(session, attempt, project ?? null) as Row[];
  return rows.map(toTrace);
}

export function readTrace(database: TraceDatabase, id: string): Trace | undefined {
  const row = database.prepare("SELECT * FROM traces WHERE id = ?").get(id) as Row | undefined;
  return row === undefined ? undefined : toTrace(row);
}

/** @returns how many sessions and calls were deleted */
export function deleteBefore(database: TraceDatabase, beforeMs: number): { sessions: number; traces: number } {
  const traces = database.prepare("DELETE FROM traces WHERE started_ms < ?").run(beforeMs).changes;
  const sessions = database.prepare("DELETE FROM sessions WHERE started_ms < ?").run(beforeMs).changes;
  return { sessions, traces };
}

function conditions(filter: TraceFilter): { sql: string; parameters: Parameter[] } {
  const parts: [sql: string, value: Parameter | undefined][] = [
    ["? IN (known.project, substr(known.project, 1, instr(known.project, '/') - 1))", filter.project],
    ["known.session = ?", filter.session],
    ["known.attempt = ?", filter.attempt],
    ["known.started_ms >= ?", filter.sinceMs],
    ["known.reward >= ?", filter.minReward],
  ];
  const given = parts.filter(([, value]) => value !== undefined);
  return {
    sql: given.length === 0 ? "" : `WHERE ${given.map(([sql]) => sql).join(" AND ")}`,
    parameters: given.map(([, value]) => value as Parameter),
  };
}

/** @throws UserError if the row was damaged */
function parse(text: unknown) {
  try {
    return text === null ? null : JSON.parse(String(text));
  } catch (cause) {
    throw new UserError("a row of the trace store is damaged: a column does not contain JSON", {
      hint: "choose other sessions with --session, --project or --since",
      cause,
    });
  }
}

/** Copies the driver's ArrayBuffer or Buffer, because a Buffer may not be aligned to four bytes. */
const words = (bytes: unknown) => Uint8Array.from(new Uint8Array(bytes as ArrayBuffer)).buffer;

function toTrace(row: Row): Trace {
  return {
    id: String(row.id),
    session: String(row.session),
    attempt: Number(row.attempt),
    role: String(row.role),
    api: String(row.api),
    model: String(row.model),
    startedMs: Number(row.started_ms),
    latencyMs: Number(row.latency_ms),
    status: row.status as Trace["status"],
    error: row.error as string | null,
    stopReason: row.stop_reason as string | null,
    policyVersion: row.policy_version as number | null,
    messages: parse(row.messages),
    tools: parse(row.tools),
    reply: parse(row.reply),
    params: parse(row.params),
    metadata: parse(row.metadata),
    promptTokens: new Int32Array(words(row.prompt_tokens)),
    tokens: new Int32Array(words(row.tokens)),
    logprobs: new Float32Array(words(row.logprobs)),
  };
}
