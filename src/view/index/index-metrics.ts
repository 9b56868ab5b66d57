/** Adds metrics.jsonl to a run's index. */
import { existsSync, statSync } from "node:fs";
import { join } from "node:path";
import { numbersOf } from "../../tracking/run-folder/json-lines.ts";
import { completeLines } from "./complete-lines.ts";
import { stored } from "./episode-rows.ts";
import type { IndexDatabase } from "./open-database.ts";
import { readState, writeState } from "./state.ts";

interface MetricsState {
  /** Identifies the file. A different file is indexed from its beginning. */
  inode: number;
  offset: number;
}

/** @returns whether everything is indexed */
export function indexMetrics(database: IndexDatabase, run: string, until: number): boolean {
  const file = join(run, "metrics.jsonl");
  const stat = existsSync(file) ? statSync(file) : undefined;
  let state = readState<MetricsState>(database, "metrics") ?? { inode: stat?.ino ?? 0, offset: 0 };
  // A resumed run rewrites the file without the steps that it repeats.
  if (stat === undefined ? state.offset > 0 : stat.ino !== state.inode || stat.size < state.offset) {
    database.exec("DELETE FROM points; DELETE FROM steps;");
    state = { inode: stat?.ino ?? 0, offset: 0 };
    writeState(database, "metrics", state);
  }
  if (stat === undefined || stat.size <= state.offset) return true;
  const putStep = database.prepare("INSERT OR REPLACE INTO steps (kind, step, epoch, time) VALUES (?, ?, ?, ?)");
  const putName = database.prepare("INSERT INTO names (text) VALUES (?)");
  const putPoint = database.prepare("INSERT OR REPLACE INTO points (kind, name, step, value) VALUES (?, ?, ?, ?)");
  const known = database.prepare("SELECT name, text FROM names").all([]) as { name: number; text: string }[];
  const names = new Map(known.map(({ name, text }) => [text, name]));
  const nameOf = (text: string) => {
    const found = names.get(text) ?? Number(putName.run([text]).lastInsertRowid);
    names.set(text, found);
    return found;
  };
  let { offset } = state;
  for (const line of completeLines(file, offset)) {
    offset = line.offset + line.length + 1;
    const object = parse(line.text);
    if (typeof object?.step === "number") {
      const { step, epoch, kind: written, time } = object;
      const kind = written === "validation" ? "validation" : "train";
      const at = Date.parse(String(time));
      putStep.run([kind, step, typeof epoch === "number" ? epoch : null, Number.isNaN(at) ? null : at]);
      const { step: _step, epoch: _epoch, ...numbers } = numbersOf(object);
      for (const [name, value] of Object.entries(numbers)) putPoint.run([kind, nameOf(name), step, stored(value)]);
    }
    if (performance.now() > until) break;
  }
  writeState(database, "metrics", { inode: stat.ino, offset });
  return offset >= stat.size;
}

function parse(text: string): Record<string, unknown> | undefined {
  try {
    return JSON.parse(text) as Record<string, unknown>;
  } catch {
    return undefined;
  }
}
