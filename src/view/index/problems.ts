/** What of a run folder cannot be read. It is kept in the index, so that it is known without reading the files again. */
import { HoneError } from "../../errors.ts";
import { readable } from "../../system-errors.ts";
import type { IndexDatabase } from "./open-database.ts";

/** A file of which something cannot be read. */
export interface FileProblem {
  /** Within the run folder. */
  file: string;
  /** The number of lines that are skipped; 0: the whole file cannot be read. */
  lines: number;
  /** The number of the first of them, from 1. */
  first: number | null;
  /** What is wrong with the first of them, or with the file. */
  reason: string;
}

/** Counts a line that is skipped. @param number from 1 */
export function skipLine(database: IndexDatabase, file: string, number: number, reason: string): void {
  database
    .prepare(
      "INSERT INTO problems (file, lines, first, reason) VALUES (?, 1, ?, ?) ON CONFLICT DO UPDATE SET lines = lines + 1",
    )
    .run([file, number, reason]);
}

export function forgetProblems(database: IndexDatabase, file: string): void {
  database.prepare("DELETE FROM problems WHERE file = ?").run([file]);
}

/**
 * Reads a file. A failure becomes the file's problem until the next call succeeds.
 * @returns what `read` returns; undefined if it fails
 * @throws errors of the index
 */
export function readOrNote<Result>(database: IndexDatabase, file: string, read: () => Result): Result | undefined {
  try {
    const result = read();
    database.prepare("DELETE FROM problems WHERE file = ? AND lines = 0").run([file]);
    return result;
  } catch (error) {
    const { reason } = unreadable(file, error);
    // Without a change the index keeps its revision.
    database
      .prepare(
        `INSERT INTO problems (file, lines, first, reason) VALUES (?, 0, NULL, ?)
         ON CONFLICT DO UPDATE SET lines = 0, first = NULL, reason = excluded.reason WHERE reason <> excluded.reason`,
      )
      .run([file, reason]);
    return undefined;
  }
}

/** The problem of a file that cannot be read. @throws the error if it is not about the file */
export function unreadable(file: string, error: unknown): FileProblem {
  const known = readable(error);
  if (!(known instanceof HoneError)) throw error;
  return { file, lines: 0, first: null, reason: known.message };
}

/** At most 100; files that cannot be read at all first. */
export const readProblems = (database: IndexDatabase): FileProblem[] =>
  database
    .prepare("SELECT file, lines, first, reason FROM problems ORDER BY lines > 0, file LIMIT 100")
    .all([]) as unknown as FileProblem[];

/** A sentence about the first of them; undefined if there are none. */
export function describeProblems([first, ...others]: readonly FileProblem[]): string | undefined {
  if (first === undefined) return undefined;
  const { file, lines, reason } = first;
  const rest =
    others.length === 0 ? "" : `; ${others.length} more ${others.length === 1 ? "file has" : "files have"} problems`;
  if (lines === 0) return `${reason}${rest}`;
  const skipped =
    lines === 1 ? `line ${first.first} is skipped` : `${lines} lines are skipped, the first is line ${first.first}`;
  return `${file}: ${skipped}: ${reason}${rest}`;
}
