/** Adds metrics.jsonl to a run's index. */
import { type MetricsLine, metricsFile, readMetricsLine } from "../../tracking/run-folder/metrics-file.ts";
import { followLines } from "./follow-lines.ts";
import { type IndexDatabase, stored } from "./open-database.ts";

/** All curves are read at once, with a value for each step. */
const maxNames = 5000;

/** @returns whether everything is indexed */
export function indexMetrics(database: IndexDatabase, run: string, until: number): boolean {
  const putStep = database.prepare("INSERT OR REPLACE INTO steps (kind, step, epoch, time) VALUES (?, ?, ?, ?)");
  const putName = database.prepare("INSERT INTO names (text) VALUES (?)");
  const putPoint = database.prepare("INSERT OR REPLACE INTO points (kind, name, step, value) VALUES (?, ?, ?, ?)");
  let names: Map<string, number> | undefined;
  function knownNames(): Map<string, number> {
    names ??= new Map(
      (database.prepare("SELECT name, text FROM names").all([]) as { name: number; text: string }[]).map(
        ({ name, text }) => [text, name],
      ),
    );
    return names;
  }
  function nameOf(text: string): number {
    const found = knownNames().get(text) ?? Number(putName.run([text]).lastInsertRowid);
    knownNames().set(text, found);
    return found;
  }
  return followLines<MetricsLine>(database, run, metricsFile, until, {
    forget() {
      database.exec("DELETE FROM points; DELETE FROM steps; DELETE FROM names;");
      names = undefined;
    },
    read(text) {
      const line = readMetricsLine(text);
      const added = Object.keys(line.metrics).filter((name) => !knownNames().has(name));
      if (added.length + knownNames().size > maxNames) throw new Error(`the run has more than ${maxNames} metrics`);
      return line;
    },
    add({ step, epoch, validation, time, metrics }) {
      const kind = validation ? "validation" : "train";
      const at = Date.parse(String(time));
      putStep.run([kind, step, epoch ?? null, Number.isNaN(at) ? null : at]);
      for (const [name, value] of Object.entries(metrics)) putPoint.run([kind, nameOf(name), step, stored(value)]);
    },
  });
}
