/** `hone traces`: what agents asked of the model through the gateway. */
import { writeFileSync } from "node:fs";
import type { ChatMessage } from "../chat/messages.ts";
import { UserError } from "../errors.ts";
import { type ExportForm, exportForms, exportTraces, traceJson } from "../gateway/traces/export-traces.ts";
import { openTraceStore, type TraceStore } from "../gateway/traces/open-trace-store.ts";
import type { TraceFilter } from "../gateway/traces/trace-reader.ts";
import type { SessionSummary, Trace } from "../gateway/traces/types.ts";
import { printable, printableJson, printableLines } from "../printable.ts";

export interface TraceFlags {
  store?: string;
  project?: string;
  session?: string;
  since?: string;
  minReward?: string;
  limit?: string;
  json?: boolean;
}

export function listCommand(flags: TraceFlags): void {
  withStore(flags, (store) => {
    const sessions = store.sessions(toFilter({ limit: "50", ...flags }));
    if (flags.json) return print(sessions.map((session) => printableJson(JSON.stringify(session))));
    if (sessions.length === 0) return print(["no sessions"]);
    print([
      columns("BEGUN", "SESSION", "ATTEMPT", "CALLS", "TOKENS", "REWARD", "ENDED"),
      ...sessions.map((session) =>
        columns(
          new Date(session.startedMs).toISOString().slice(0, 19).replace("T", " "),
          session.session,
          String(session.attempt),
          session.unanswered === 0 ? String(session.calls) : `${session.calls} (${session.unanswered} unanswered)`,
          String(session.sampledTokens),
          session.reward === null ? "unknown" : String(session.reward),
          endOf(session),
        ),
      ),
    ]);
  });
}

/** @param name a session, `session#attempt`, or the id of one call */
export function showCommand(name: string, flags: TraceFlags): void {
  withStore(flags, (store) => {
    const found = findTraces(store, name);
    if (found.length === 0) {
      throw new UserError(`there is no session and no call ${name}`, { hint: "hone traces list shows what there is" });
    }
    if (flags.json) return print(found.map((trace) => printableJson(JSON.stringify(traceJson(trace)))));
    print(found.flatMap(describe).map(printableLines));
  });
}

export function exportCommand(flags: TraceFlags & { as: string; output?: string }): void {
  const { as, output } = flags;
  if (!exportForms.includes(as as ExportForm)) {
    throw new UserError(`--as ${as} is none of ${exportForms.join(", ")}`);
  }
  withStore(flags, (store) => {
    const lines = Array.from(exportTraces(store, as as ExportForm, toFilter(flags)), (value) =>
      printableJson(JSON.stringify(value)),
    );
    if (output === undefined) return print(lines);
    try {
      writeFileSync(output, lines.map((line) => `${line}\n`).join(""), { flag: "wx" });
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      if (code === "EEXIST") throw new UserError(`${output} exists already`, { hint: "name a file that does not" });
      throw new UserError(`${output} cannot be written: ${message}`, { cause: error });
    }
    print([`${lines.length} lines written to ${output}`]);
  });
}

function withStore(flags: TraceFlags, work: (store: TraceStore) => void): void {
  const store = openTraceStore({ create: false, ...(flags.store === undefined ? {} : { path: flags.store }) });
  try {
    work(store);
  } finally {
    store.close();
  }
}

function toFilter({ project, session, since, minReward, limit }: TraceFlags): TraceFilter {
  return {
    ...(project === undefined ? {} : { project }),
    ...(session === undefined ? {} : { session }),
    ...(since === undefined ? {} : { sinceMs: toTime(since) }),
    ...(minReward === undefined ? {} : { minReward: toNumber("--min-reward", minReward) }),
    ...(limit === undefined ? {} : { limit: toNumber("--limit", limit) }),
  };
}

function toNumber(flag: string, text: string): number {
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value)) throw new UserError(`${flag} ${text} is no number`);
  return value;
}

const unitMs: Readonly<Record<string, number>> = { m: 60_000, h: 3_600_000, d: 86_400_000 };

/** A date, or how long ago: `2h`, `7d`. */
function toTime(text: string): number {
  const [, count, unit] = /^(\d+)([mhd])$/.exec(text) ?? [];
  const time = unit === undefined ? Date.parse(text) : Date.now() - Number(count) * unitMs[unit]!;
  if (Number.isFinite(time)) return time;
  throw new UserError(`--since ${text} is neither a date nor a time ago such as 30m, 2h or 7d`);
}

function findTraces(store: TraceStore, name: string): Trace[] {
  const [, session = name, attempt] = /^(.*)#(\d+)$/.exec(name) ?? [];
  if (attempt !== undefined) return store.traces({ session, attempt: Number(attempt) });
  const attempts = store.sessions({ session: name });
  if (attempts.length > 0) return attempts.flatMap((each) => store.traces(each));
  const one = store.find(name);
  return one === undefined ? [] : [one];
}

function describe(trace: Trace): string[] {
  const { id, api, role, attempt, status, error, stopReason, policyVersion, promptTokens, tokens, latencyMs } = trace;
  const ended = status === "ok" ? `${stopReason}, policy version ${policyVersion}` : `${status}: ${error}`;
  const counts = `${promptTokens.length} + ${tokens.length} tokens, ${latencyMs.toFixed(0)} ms`;
  const messages = Array.isArray(trace.messages) ? (trace.messages as ChatMessage[]) : [];
  return [
    `--- ${id}  ${api} as ${role}, attempt ${attempt}: ${ended}; ${counts}`,
    ...messages.flatMap((message) => describeMessage(message, " ")),
    ...(typeof trace.reply === "string" ? [`> ${trace.reply}`] : []),
    ...(trace.reply !== null && typeof trace.reply === "object"
      ? describeMessage(trace.reply as ChatMessage, ">")
      : []),
    "",
  ];
}

const describeMessage = ({ role, content, reasoning, toolCalls = [] }: ChatMessage, mark: string): string[] => [
  ...(reasoning ? [`${mark} ${role} thinks: ${reasoning}`] : []),
  ...(content === "" ? [] : [`${mark} ${role}: ${content}`]),
  ...toolCalls.map(
    (call) => `${mark} ${role} calls ${call.name}(${call.argumentsText ?? JSON.stringify(call.arguments)})`,
  ),
];

const endOf = ({ termination, failure, endedMs }: SessionSummary): string =>
  failure ?? termination ?? (endedMs === null ? "running, or died" : "");

const columns = (
  begun: string,
  session: string,
  attempt: string,
  calls: string,
  tokens: string,
  reward: string,
  end: string,
) =>
  printable(
    `${begun.padEnd(20)} ${session.padEnd(36)} ${attempt.padEnd(7)} ${calls.padEnd(6)} ${tokens.padStart(7)}  ${reward.padEnd(8)} ${end}`,
  );

const print = (lines: readonly string[]): void => {
  process.stdout.write(lines.map((line) => `${line}\n`).join(""));
};
