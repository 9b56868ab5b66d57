/** Lines of the journal from a sequence number on. */
import { withInside } from "../../files/regular-file.ts";
import { eventOf, type JournalLine, journalName, readJournalLine } from "../../tracking/run-folder/journal.ts";
import { completeLines } from "../../tracking/run-folder/lines.ts";
import { readJournalState } from "../index/index-journal.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { type Given, wholeNumberOf } from "./parameters.ts";

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
