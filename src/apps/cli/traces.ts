/** `hone traces`: lists, shows and exports the model calls that the gateway recorded, or that OpenTelemetry exported. */
import { type Command, InvalidArgumentError, Option } from "commander";
import { UserError } from "../../base/errors.ts";
import { printable, printableJson, printableLines } from "../../base/text.ts";
import { type ChatMessage, describeContent } from "../../chat/messages.ts";
import { type ReadSpans, readSpans, storeSpans } from "../../gateway/traces/otlp.ts";
import { type ExportForm, exportForms, exportTraces, traceJson } from "../../gateway/traces/read.ts";
import { openTraceStore } from "../../gateway/traces/store.ts";
import type { SessionSummary, Trace, TraceFilter, TraceStore } from "../../gateway/types.ts";
import { type Choice, selectTraces } from "../../supervised/select.ts";
import {
  choiceOptions,
  conditionHelp,
  describeCounts,
  heldOutput,
  loadSpanFilter,
  readText,
  spanFilterHelp,
  wholeNumber,
  writeLines,
} from "./options.ts";

interface StoreFlags {
  store?: string;
  json?: boolean;
}

interface FilterFlags extends StoreFlags {
  project?: string;
  session?: string;
  since?: number;
  minReward?: number;
  limit?: number;
}

export function register(traces: Command): void {
  const subcommand = (name: string, description: string) =>
    traces
      .command(name)
      .description(description)
      .option("--store <file>", "the trace database (default: ~/.rllm/traces.db)");
  const filtered = (command: Command) =>
    command
      .option("--project <name>", "a project, or one run of it as project/run")
      .option("--session <name>", "one session")
      .option("--since <time>", "a date, or a time ago: 30m, 2h, 7d", parseTime)
      .option("--min-reward <number>", "only sessions with at least this reward", parseNumber)
      .option("--limit <count>", "only this many sessions, the newest", wholeNumber(0));
  filtered(subcommand("list", "List sessions with their calls and rewards: the newest 50 without --limit."))
    .option("--json", "print one JSON object per line")
    .action(listCommand);
  subcommand("show", "Show the conversations of a session, or one call.")
    .argument("<name>", "a session, SESSION#ATTEMPT, or the id of a call")
    .option("--json", "print one JSON object per line, with tokens and log-probabilities")
    .action(showCommand);
  subcommand("import", "Read OpenTelemetry's spans of model calls into the trace database.")
    .argument("<file>", "OTLP in JSON: one export, or one a line as the collector's file exporter writes")
    .option("--project <name>", "the project of the traces", "opentelemetry")
    .option("--filter <file>", spanFilterHelp)
    .addHelpText(
      "after",
      `
Nothing leaves this machine. Imported traces have no tokens: they become tasks
and rows for supervised training, not batches of reinforcement learning.

Examples:
  hone traces import spans.json --store traces.db
  hone traces export --store traces.db --as rows -o tasks.jsonl
  hone traces export --store traces.db --as sft -o sft.jsonl`,
    )
    .action(importCommand);
  const exporting = filtered(subcommand("export", "Write traces as JSON lines: all of them, or training data."));
  choiceOptions(exporting, undefined)
    .addOption(
      new Option(
        "--as <form>",
        "jsonl (calls with tokens), sft (conversations for hone sft), pairs (the best against the worst session of each task, for hone dpo) or rows (tasks for a dataset)",
      )
        .choices([...exportForms, "pairs"])
        .default("jsonl"),
    )
    .option("-o, --output <file>", "where to write (default: standard output)")
    .addHelpText(
      "after",
      `${conditionHelp("sessions")}
A session without a task, such as an imported trace, is an attempt at its
first prompt.

Examples:
  hone traces export --as sft --min-reward 1 -o good.jsonl
  hone traces export --as sft --select best --max-per-task 2 -o best.jsonl
  hone traces export --as pairs --filter "0 < avg < 1" -o pairs.jsonl
  hone traces export --as rows --since 7d --project support -o tasks.jsonl`,
    )
    .action(exportCommand);
}

function listCommand(flags: FilterFlags): void {
  withStore(flags, (store) => {
    const sessions = store.sessions(toFilter({ limit: 50, ...flags }));
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
function showCommand(name: string, flags: StoreFlags): void {
  withStore(flags, (store) => {
    const found = findTraces(store, name);
    if (found.length === 0) {
      throw new UserError(`no session or call is named ${name}`, { hint: "hone traces list lists the sessions" });
    }
    if (flags.json) return print(found.map((trace) => printableJson(JSON.stringify(traceJson(trace)))));
    print(found.flatMap(describe).map(printableLines));
  });
}

interface ExportFlags extends FilterFlags, Partial<Choice> {
  as: ExportForm | "pairs";
  output?: string;
}

function exportCommand(flags: ExportFlags): void {
  const { as, output } = flags;
  withStore(flags, (store) => {
    const held = heldOutput(flags);
    const choice = choiceIn(flags);
    if (as !== "pairs" && choice === undefined) return write([...exportTraces(store, as, toFilter(flags))], output);
    if (as !== "sft" && as !== "pairs") {
      throw new UserError(`--as ${as} exports every session, so --select and its options do not apply`, {
        hint: "use --as sft or --as pairs",
      });
    }
    const { train, validation, counts } = selectTraces(store, toFilter(flags), choice ?? { select: "all" }, as);
    write(train, output);
    if (held !== undefined) write(validation, held);
    process.stderr.write(`${describeCounts(counts, "sessions")}\n`);
  });
}

/** Undefined: every session is exported, also without a reward. */
function choiceIn({ filter, select, maxPerTask, dedup, valFraction }: ExportFlags): Choice | undefined {
  const given = Object.entries({ filter, select, maxPerTask, dedup, valFraction }).filter(
    ([, value]) => value !== undefined,
  );
  if (given.length === 0) return undefined;
  return { select: "all", ...Object.fromEntries(given) };
}

function write(values: readonly unknown[], output: string | undefined): void {
  const written = writeLines(values, output, "name a new file");
  if (written !== "") print([written]);
}

async function importCommand(file: string, flags: StoreFlags & { project: string; filter?: string }): Promise<void> {
  const filter = await loadSpanFilter(flags.filter);
  const exports: ReadSpans[] = [];
  for (const one of readExports(file)) exports.push(await readSpans(one, filter));
  const store = openTraceStore({
    project: flags.project,
    ...(flags.store === undefined ? {} : { path: flags.store }),
  });
  const skipped: Record<string, number> = {};
  try {
    for (const one of exports) {
      for (const [reason, count] of Object.entries(storeSpans(store, one)))
        skipped[reason] = (skipped[reason] ?? 0) + count;
    }
    store.flush();
  } finally {
    store.close();
  }
  const calls = exports.flatMap(({ traces }) => traces);
  print([
    `calls read: ${calls.length}, of traces: ${new Set(calls.map(({ session }) => session)).size}`,
    ...Object.entries(skipped).map(([reason, count]) => printable(`skipped ${count} spans: ${reason}`)),
  ]);
}

function readExports(file: string): unknown[] {
  const text = readText(file);
  try {
    const value: unknown = JSON.parse(text);
    return Array.isArray(value) ? value : [value];
  } catch (whole) {
    return text.split("\n").flatMap((line, index) => {
      if (line.trim() === "") return [];
      try {
        return [JSON.parse(line) as unknown];
      } catch (cause) {
        // A file that begins with a value is one for each line.
        const [place, { message }] = index === 0 ? [file, whole as Error] : [`${file}:${index + 1}`, cause as Error];
        throw new UserError(`${place} is not JSON: ${message}`, { cause });
      }
    });
  }
}

function withStore({ store: path }: StoreFlags, work: (store: TraceStore) => void): void {
  const store = openTraceStore(path === undefined ? { create: false } : { create: false, path });
  try {
    work(store);
  } finally {
    store.close();
  }
}

const toFilter = ({ since, project, session, minReward, limit }: FilterFlags): TraceFilter => ({
  ...{ project, session, minReward, limit },
  sinceMs: since,
});

function parseNumber(text: string): number {
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value)) throw new InvalidArgumentError("It must be a number.");
  return value;
}

const unitMs: Readonly<Record<string, number>> = { m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Parses a date, or a time ago such as `2h`, to milliseconds since 1970. */
function parseTime(text: string): number {
  const [, count, unit = ""] = /^(\d+)([mhd])$/.exec(text) ?? [];
  const ago = unitMs[unit];
  const time = ago === undefined ? Date.parse(text) : Date.now() - Number(count) * ago;
  if (Number.isFinite(time)) return time;
  throw new InvalidArgumentError("It must be a date, or a time ago such as 30m, 2h or 7d.");
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
  ...(content === "" ? [] : [`${mark} ${role}: ${describeContent(content)}`]),
  ...toolCalls.map(
    (call) => `${mark} ${role} calls ${call.name}(${call.argumentsText ?? JSON.stringify(call.arguments)})`,
  ),
];

const endOf = ({ termination, failure, endedMs }: SessionSummary): string =>
  failure ?? termination ?? (endedMs === null ? "running or killed" : "");

const widths = [20, 36, 7, 6, 7, 8];

const columns = (...cells: string[]) =>
  printable(cells.map((cell, column) => cell.padEnd(widths[column] ?? 0)).join(" "));

const print = (lines: readonly string[]): void => {
  process.stdout.write(lines.map((line) => `${line}\n`).join(""));
};
