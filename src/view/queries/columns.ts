/** The newest values of chosen metrics, for columns in the list of runs. */
import type { JsonNumber, MetricColumns } from "../api.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { fromStored } from "./stored.ts";

/** @param runs the indexes by the name of their run */
export function metricColumns(runs: ReadonlyMap<string, IndexDatabase>, chosen: readonly string[]): MetricColumns {
  const names = new Set<string>();
  const values: MetricColumns["values"] = {};
  for (const [run, database] of runs) {
    const known = database.prepare("SELECT text FROM names").all([]) as { text: string }[];
    for (const { text } of known) names.add(text);
    const newest = database.prepare(
      "SELECT value FROM points WHERE name = (SELECT name FROM names WHERE text = ?) ORDER BY step DESC LIMIT 1",
    );
    const found: Record<string, JsonNumber> = {};
    for (const name of chosen) {
      const value = fromStored((newest.get([name]) as { value: number | string } | undefined)?.value);
      if (value !== null) found[name] = value;
    }
    values[run] = found;
  }
  return { names: [...names].sort(), values };
}
