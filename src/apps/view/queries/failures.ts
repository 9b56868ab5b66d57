/** What went wrong in a run: failures by boundary and message, and the lines of its journal. */
import { withInside } from "../../../base/files.ts";
import { filterCondition } from "../../../tracking/filter.ts";
import { eventOf, type JournalLine, journalName, readJournalLine } from "../../../tracking/journal.ts";
import { completeLines } from "../../../tracking/json-lines.ts";
import type { IndexDatabase } from "../database.ts";
import { readJournalState } from "../run-index.ts";
import { rowsWhere, whereOf } from "./episodes.ts";
import { type Given, wholeNumberOf } from "./parameters.ts";

// Failures by boundary and message.

interface FailureRow {
  episode: number;
  step: number;
  failure: string;
  boundary: string;
  message: string;
}

const maxExamples = 5;

export interface FailuresQuery {
  filter?: string;
}

export function failures(database: IndexDatabase, query: Given<FailuresQuery>) {
  const { where, values } = whereOf(database, filterCondition(query.filter ?? ""));
  const failed = database
    .prepare(
      `SELECT episode, step, failure, boundary, message FROM trajectories JOIN details USING (episode)
       WHERE failure IS NOT NULL AND ${where} ORDER BY step, place`,
    )
    .all(values) as FailureRow[];
  const retried = database
    .prepare(
      `SELECT retries.episode, step, retries.failure, retries.boundary, retries.message
       FROM retries JOIN trajectories ON row = retries.episode WHERE row IN (SELECT row FROM trajectories WHERE ${where})
       ORDER BY step, place`,
    )
    .all(values) as FailureRow[];
  const terminations = database
    .prepare(
      `SELECT termination, count(*) AS count FROM trajectories WHERE ${where} GROUP BY termination ORDER BY count DESC`,
    )
    .all(values) as { termination: string; count: number }[];
  return {
    failures: byMessage(database, failed),
    /** Failed attempts that were retried. */
    retries: byMessage(database, retried, true),
    /** All episodes by how they ended. */
    terminations,
  };
}

/** Numbers, ids and addresses differ between failures of one cause. */
const differing = /0x[0-9a-f]+|[0-9a-f]{8,}|\d+(?:\.\d+)?/gi;
const partsOf = (message: string) => message.slice(0, 500).split(differing);

export type FailureGroup = ReturnType<typeof byMessage>[number];

/** Failures by boundary and cause, the most frequent first. */
function byMessage(database: IndexDatabase, rows: readonly FailureRow[], retried = false) {
  const groups = new Map<string, FailureRow[]>();
  for (const row of rows) {
    const name = JSON.stringify([row.failure, row.boundary, partsOf(row.message)]);
    const own = groups.get(name) ?? [];
    own.push(row);
    groups.set(name, own);
  }
  return [...groups.values()]
    .sort((left, right) => right.length - left.length)
    .map((own) => {
      const newest = own.at(-1)!;
      const episodes = [...new Set(own.map(({ episode }) => episode))].slice(-maxExamples).reverse();
      const marks = episodes.map(() => "?").join(", ");
      return {
        kind: newest.failure,
        boundary: newest.boundary,
        message: newest.message,
        count: own.length,
        steps: [own[0]!.step, newest.step] satisfies [first: number, last: number],
        /** Lists them. */
        filter: retried ? "retries>0" : failureFilter(newest),
        /** The newest. */
        examples: rowsWhere(database, `row IN (${marks}) ORDER BY step DESC, place`, episodes),
      };
    });
}

/** The longest part of the message that does not change. */
function failureFilter({ failure, boundary, message }: FailureRow): string {
  const longest = partsOf(message).reduce((best, part) => (part.trim().length > best.length ? part.trim() : best), "");
  const words = longest === "" ? "" : ` and message~"${longest.replaceAll(/["\\]/g, "\\$&")}"`;
  return `failure=${failure} and boundary=${boundary}${words}`;
}

// Lines of the journal from a sequence number on.

/** The position of a line at or before the next entry. */
export function offsetOf(database: IndexDatabase, after: number): number {
  const mark = database.prepare("SELECT offset FROM marks WHERE seq <= ? ORDER BY seq DESC LIMIT 1").get([after + 1]) as
    | { offset: number }
    | undefined;
  return mark?.offset ?? 0;
}

/** Longer reading is continued by the next request. */
const maxMilliseconds = 500;

/** A position in the journal: the number of the last entry, and the start of a line at or before the next one. */
export interface JournalPlace {
  seq: number;
  offset: number;
}

export interface FoundEntries {
  entries: JournalLine[];
  /** To continue from. */
  place: JournalPlace;
  /** Whether there may be more entries. */
  more: boolean;
}

/**
 * The next entries after a place.
 * @param end where the last indexed entry ends
 */
export function entriesFrom(
  folder: string,
  { seq, offset }: JournalPlace,
  end: number,
  limit: number,
  isWanted: (kind: string) => boolean = () => true,
): FoundEntries {
  const found: FoundEntries = { entries: [], place: { seq, offset }, more: false };
  let begun = false;
  const until = performance.now() + maxMilliseconds;
  withInside(folder, journalName, (file) => {
    for (const { text, next } of completeLines(file, { offset, end })) {
      found.place.offset = next;
      const entry = text === undefined ? undefined : parse(text);
      begun ||= entry !== undefined && entry.seq > seq;
      // The index skips a line with the number of the line before.
      if (begun && entry !== undefined && entry.seq !== found.place.seq) {
        found.place.seq = entry.seq;
        if (isWanted(entry.kind)) found.entries.push(entry);
      }
      if (found.entries.length >= limit || (begun && performance.now() > until)) {
        found.more = true;
        return;
      }
    }
  });
  return found;
}

export interface JournalQuery {
  /** A sequence number. */
  after?: string;
  /** Default 200, at most 2000. */
  limit?: string;
  /** Joined by commas; default: all but `rollout`. */
  kinds?: string;
}

export function journalPage(database: IndexDatabase, folder: string, query: Given<JournalQuery>) {
  const after = wholeNumberOf("after", query.after, 0);
  const limit = wholeNumberOf("limit", query.limit, 200, 2000);
  const kinds = query.kinds === undefined ? undefined : new Set(query.kinds.split(","));
  const isWanted = (kind: string) => (kinds === undefined ? kind !== "rollout" : kinds.has(kind));
  const { offset: end } = readJournalState(database);
  const { entries, place } = entriesFrom(
    folder,
    { seq: after, offset: offsetOf(database, after) },
    end,
    limit,
    isWanted,
  );
  return {
    entries,
    /** The next page begins after this number. */
    cursor: place.seq,
  };
}

/** Undefined for a line that the index skips. */
function parse(text: string): JournalLine | undefined {
  try {
    const line = readJournalLine(text);
    eventOf(line);
    return line;
  } catch {
    return undefined;
  }
}
