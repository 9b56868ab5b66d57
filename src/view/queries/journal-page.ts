/** Lines of the journal from a sequence number on. */
import { existsSync } from "node:fs";
import { journalFile } from "../../tracking/run-folder/journal.ts";
import type { JournalEntry, JournalPage, JournalQuery } from "../api.ts";
import { completeLines } from "../index/complete-lines.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { type Given, wholeNumberOf } from "./parameters.ts";

/** The position of a line at or before the next entry. */
export function offsetOf(database: IndexDatabase, after: number): number {
  const mark = database.prepare("SELECT offset FROM marks WHERE seq <= ? ORDER BY seq DESC LIMIT 1").get([after + 1]) as
    | { offset: number }
    | undefined;
  return mark?.offset ?? 0;
}

/**
 * The next entries after `after`.
 * @returns the position to continue from, and whether there may be more entries
 */
export function entriesFrom(
  folder: string,
  offset: number,
  after: number,
  limit: number,
  isWanted: (kind: string) => boolean = () => true,
) {
  const entries: JournalEntry[] = [];
  let at = offset;
  let seq = after;
  if (existsSync(journalFile(folder))) {
    for (const line of completeLines(journalFile(folder), offset)) {
      at = line.offset + line.length + 1;
      const entry = parse(line.text);
      if (entry === undefined || entry.seq <= after) continue;
      seq = entry.seq;
      if (isWanted(entry.kind)) entries.push(entry);
      if (entries.length >= limit) return { entries, offset: at, seq, more: true };
    }
  }
  return { entries, offset: at, seq, more: false };
}

export function journalPage(database: IndexDatabase, folder: string, query: Given<JournalQuery>): JournalPage {
  const after = wholeNumberOf("after", query.after, 0);
  const limit = wholeNumberOf("limit", query.limit, 200, 2000);
  const kinds = query.kinds === undefined ? undefined : new Set(query.kinds.split(","));
  const isWanted = (kind: string) => (kinds === undefined ? kind !== "rollout" : kinds.has(kind));
  const { entries, seq } = entriesFrom(folder, offsetOf(database, after), after, limit, isWanted);
  return { entries, cursor: seq };
}

function parse(text: string): JournalEntry | undefined {
  try {
    const entry = JSON.parse(text) as JournalEntry | null;
    return typeof entry?.seq === "number" ? entry : undefined;
  } catch {
    return undefined;
  }
}
