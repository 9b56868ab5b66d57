/** The metrics of a run as columns, and the newest values of many runs. */
import type { IndexDatabase } from "../index/open-database.ts";
import { fromStored, type JsonNumber } from "./json.ts";
import { type Given, type Kind, kindOf } from "./parameters.ts";

export interface CurvesQuery {
  /** Joined by commas; default: all. */
  names?: string;
  kind?: Kind;
}

export type Curves = ReturnType<typeof curves>;

export function curves(database: IndexDatabase, query: Given<CurvesQuery>) {
  const kind = kindOf(query.kind);
  const known = database
    .prepare(
      "SELECT name, text FROM names WHERE name IN (SELECT DISTINCT name FROM points WHERE kind = ?) ORDER BY text",
    )
    .all([kind]) as { name: number; text: string }[];
  const wanted = query.names === undefined ? undefined : new Set(query.names.split(","));
  const rows = database.prepare("SELECT step FROM steps WHERE kind = ? ORDER BY step").all([kind]) as {
    step: number;
  }[];
  const steps = rows.map(({ step }) => step);
  const place = new Map(steps.map((step, index) => [step, index]));
  const points = database.prepare("SELECT step, value FROM points WHERE kind = ? AND name = ?");
  const column = (name: number) => {
    const values = new Array<JsonNumber | null>(steps.length).fill(null);
    for (const { step, value } of points.all([kind, name]) as { step: number; value: number | string }[]) {
      const at = place.get(step);
      if (at !== undefined) values[at] = fromStored(value);
    }
    return values;
  };
  const chosen = known.filter(({ text }) => wanted === undefined || wanted.has(text));
  const columns = Object.fromEntries(chosen.map(({ name, text }) => [text, column(name)]));
  return {
    /** All names of this kind, sorted. */
    names: known.map(({ text }) => text),
    /** `[S]` */
    steps,
    /** `[S]` by name; null where a step has no such value. */
    columns,
  };
}

/** The values of one metric by step. */
export function oneCurve(database: IndexDatabase, name: string, kind: Kind = "train") {
  return database
    .prepare(
      "SELECT step, value FROM points WHERE kind = ? AND name = (SELECT name FROM names WHERE text = ?) ORDER BY step",
    )
    .all([kind, name]) as { step: number; value: number | string }[];
}

/**
 * Metrics as columns of the list of runs.
 * @param runs the indexes by the name of their run
 */
export function metricColumns(runs: ReadonlyMap<string, IndexDatabase>, chosen: readonly string[]) {
  const names = new Set<string>();
  const values: Record<string, Record<string, JsonNumber>> = {};
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
  return {
    /** All names of all runs, sorted. */
    names: [...names].sort(),
    /** The newest value, by run and name; absent where a run does not have it. */
    values,
  };
}
