/** Adds the new lines of a file of the run folder to the index. */
import { closeSync } from "node:fs";
import { type OpenFile, openInside } from "../../files/regular-file.ts";
import { completeLines, type PlacedLine, tooLong } from "../../tracking/run-folder/lines.ts";
import { type IndexDatabase, readState, writeState } from "./open-database.ts";
import { forgetProblems, readOrNote, skipLine } from "./problems.ts";

interface Followed {
  /** Identifies the file. A different file is indexed from its beginning. */
  inode: number;
  offset: number;
  /** Lines before the offset. */
  lines: number;
  /** The size of the file when all its complete lines had been read. */
  size: number;
}

interface LinesOptions<Read> {
  /** Removes what the file's earlier lines added. */
  forget: () => void;
  /** @throws Error with a clause about what is wrong: the line is skipped, and counted */
  read: (text: string) => Read;
  add: (read: Read, line: PlacedLine) => void;
}

const nothing: Followed = { inode: 0, offset: 0, lines: 0, size: 0 };

/** @returns whether everything is indexed */
export function followLines<Read>(
  database: IndexDatabase,
  run: string,
  name: string,
  until: number,
  options: LinesOptions<Read>,
): boolean {
  const opened = readOrNote(database, name, () => ({ file: openInside(run, name) }));
  if (opened === undefined) return true;
  const { file } = opened;
  try {
    return follow(database, name, until, file, options);
  } finally {
    if (file !== undefined) closeSync(file.handle);
  }
}

function follow<Read>(
  database: IndexDatabase,
  name: string,
  until: number,
  file: OpenFile | undefined,
  { forget, read, add }: LinesOptions<Read>,
): boolean {
  const { ino: inode, size } = file?.stat ?? { ino: 0, size: 0 };
  let state = readState<Followed>(database, name) ?? nothing;
  // The file was replaced: a resumed run rewrites metrics.jsonl without the steps that it repeats.
  if (inode !== state.inode || size < state.offset) {
    forget();
    forgetProblems(database, name);
    state = { ...nothing, inode };
    writeState(database, name, state);
  }
  if (file === undefined || size <= state.offset || size === state.size) return true;
  let complete = true;
  for (const line of completeLines(file, { offset: state.offset })) {
    state = { ...state, offset: line.next, lines: state.lines + 1 };
    const found = tryRead(read, line);
    if ("read" in found) add(found.read, line);
    else skipLine(database, name, state.lines, found.reason);
    if (performance.now() > until) {
      complete = line.next >= size;
      break;
    }
  }
  writeState(database, name, { ...state, size: complete ? size : 0 });
  return complete;
}

function tryRead<Read>(
  read: (text: string) => Read,
  { text, length }: PlacedLine,
): { read: Read } | { reason: string } {
  if (text === undefined) return { reason: tooLong(length) };
  try {
    return { read: read(text) };
  } catch (error) {
    return { reason: (error as Error).message };
  }
}
