/** The metrics of a run as columns. */
import type { Curves, CurvesQuery, JsonNumber } from "../api.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { type Given, kindOf } from "./parameters.ts";
import { fromStored } from "./stored.ts";

export function curves(database: IndexDatabase, query: Given<CurvesQuery>): Curves {
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
  return {
    names: known.map(({ text }) => text),
    steps,
    columns: Object.fromEntries(chosen.map(({ name, text }) => [text, column(name)])),
  };
}

/** The values of one metric by step. */
export function oneCurve(database: IndexDatabase, name: string, kind: "train" | "validation" = "train") {
  return database
    .prepare(
      "SELECT step, value FROM points WHERE kind = ? AND name = (SELECT name FROM names WHERE text = ?) ORDER BY step",
    )
    .all([kind, name]) as { step: number; value: number | string }[];
}
