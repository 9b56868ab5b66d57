/**
 * The journal of a run: events.jsonl, one line `{seq, time, kind, ...}` per event, appended and never changed. `seq` counts
 * from 1 and continues after a resume; `time` is in milliseconds since 1970. A killed process leaves complete lines and
 * at most one torn line, which readers skip.
 */
import { closeSync, openSync, readSync, writeSync } from "node:fs";
import { join } from "node:path";
import { type OpenFile, withInside } from "../../files/regular-file.ts";
import type { RunEvent, Subscriber } from "../events.ts";
import { eventOf, type JournalLine, readJournalLine } from "./journal-line.ts";
import { toJson } from "./json-lines.ts";
import { linesFrom, mostLineBytes } from "./lines.ts";

export const journalName = "events.jsonl";
export const journalFile = (runFolder: string) => join(runFolder, journalName);

export interface JournalOptions {
  /** Called once, with what was lost first. */
  onProblem: (text: string) => void;
  now?: () => number;
  /** Milliseconds after which a line is in the file at the latest. */
  flushMs?: number;
}

export interface Journal extends Subscriber {
  /** Events that could not be written. */
  readonly lost: number;
}

/** Longer buffers are written at once. */
const mostBuffered = 1 << 16;

/** Never throws: a run continues without its journal. Lines are written in batches, at most `flushMs` late. */
export function openJournal(runFolder: string, { onProblem, now = Date.now, flushMs = 100 }: JournalOptions): Journal {
  const file = journalFile(runFolder);
  let handle: number | undefined;
  /** Of the last line; undefined before the first event. */
  let seq: number | undefined;
  let buffered = "";
  let waiting = 0;
  let lost = 0;
  let timer: NodeJS.Timeout | undefined;
  /** The file does not end with a line break. */
  let torn = false;

  function failed(error: unknown): void {
    const isFirst = lost === 0;
    lost += Math.max(1, waiting);
    waiting = 0;
    buffered = "";
    torn = true;
    const reason = error instanceof Error ? error.message : String(error);
    if (isFirst) onProblem(`events are missing in ${file}, counted as run/journal_events_lost: ${reason}`);
  }

  /** @throws if the file is not a regular file, which could block */
  function open(): number {
    withInside(runFolder, journalName, () => {});
    return openSync(file, "a");
  }

  function begin(): number {
    try {
      const found = withInside(runFolder, journalName, (file) => lastLine(file) ?? lastOfAll(file));
      torn = found?.torn ?? false;
      return found?.last?.seq ?? 0;
    } catch (error) {
      failed(error);
      return 0;
    }
  }

  function flush(): void {
    clearTimeout(timer);
    timer = undefined;
    if (waiting === 0) return;
    const bytes = Buffer.from(torn ? `\n${buffered}` : buffered);
    try {
      handle ??= open();
      for (let at = 0; at < bytes.length; ) at += writeSync(handle, bytes, at);
      torn = false;
      buffered = "";
      waiting = 0;
    } catch (error) {
      failed(error);
    }
  }

  return {
    get lost() {
      return lost;
    },
    event(event) {
      const entry = journalEntry(event);
      if (entry === undefined) return;
      seq = (seq ?? begin()) + 1;
      buffered += `${toJson({ seq, time: now(), ...entry })}\n`;
      waiting++;
      if (buffered.length >= mostBuffered || event.type === "run-end") flush();
      else timer ??= setTimeout(flush, flushMs);
    },
    async close() {
      flush();
      if (handle !== undefined) closeSync(handle);
      handle = undefined;
    },
  };
}

/** What a line holds besides its number and time; undefined: the event is not written, because other files have it. */
function journalEntry(event: RunEvent): Record<string, unknown> | undefined {
  switch (event.type) {
    case "rollout-progress":
    case "rollout-log":
    case "samples":
    case "distributions":
    case "plot":
      return undefined;
    case "run-start": {
      const { type: kind, history: _, ...rest } = event;
      return { kind, ...rest };
    }
    // metrics.jsonl has the metrics.
    case "step-end":
    case "validation-end": {
      const { type: kind, metrics: _, ...rest } = event;
      return { kind, ...rest };
    }
    default: {
      const { type: kind, ...rest } = event;
      return { kind, ...rest };
    }
  }
}

/** How the run ended, as the last line says; undefined if the process was killed, or the run continues. */
export function lastEnd(runFolder: string): "done" | "stopped" | "failed" | undefined {
  const last = withInside(runFolder, journalName, lastLine)?.last;
  const event = last?.kind === "run-end" ? orSkip(() => eventOf(last)) : undefined;
  return event?.kind === "run-end" ? event.reason : undefined;
}

/** The last line that can be read, and whether the file ends within another. */
interface LastLine {
  last: JournalLine | undefined;
  torn: boolean;
}

/** Undefined if no line near the end of the file can be read. */
function lastLine({ handle, stat: { size } }: OpenFile): LastLine | undefined {
  for (let window = 1 << 16; ; window *= 4) {
    const from = Math.max(0, size - window);
    const bytes = Buffer.alloc(size - from);
    readSync(handle, bytes, 0, bytes.length, from);
    const text = bytes.toString("utf8");
    const last = text
      .split("\n")
      .slice(from === 0 ? 0 : 1)
      .reduceRight<LastLine["last"]>((found, line) => found ?? orSkip(() => readJournalLine(line)), undefined);
    if (last !== undefined || from === 0) return { last, torn: size > 0 && !text.endsWith("\n") };
    if (window > 2 * mostLineBytes) return undefined;
  }
}

/** The same for a journal whose end cannot be read. */
function lastOfAll(file: OpenFile): LastLine {
  let found: LastLine = { last: undefined, torn: false };
  for (const { text, ended } of linesFrom(file)) {
    found = { last: orSkip(() => readJournalLine(text ?? "")) ?? found.last, torn: !ended };
  }
  return found;
}

function orSkip<Result>(read: () => Result): Result | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}
