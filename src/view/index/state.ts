/** Small values of an index: how far each file is read, and what the journal says about the run. */
import type { IndexDatabase } from "./open-database.ts";

export function readState<Value>(database: IndexDatabase, name: string): Value | undefined {
  const row = database.prepare("SELECT value FROM state WHERE name = ?").get([name]) as { value: string } | undefined;
  return row === undefined ? undefined : (JSON.parse(row.value) as Value);
}

export function writeState(database: IndexDatabase, name: string, value: unknown): void {
  database.prepare("INSERT OR REPLACE INTO state (name, value) VALUES (?, ?)").run([name, JSON.stringify(value)]);
}
