/** The metrics of runs as columns, and how values are distributed over the episodes of a run. */
import { UserError } from "../../../base/errors.ts";
import { filterCondition } from "../../../tracking/filter.ts";
import type { IndexDatabase } from "../database.ts";
import { type Bounds, boundsOf, type ColoringName, coloringNames } from "../token-scale.ts";
import { episode } from "./episode.ts";
import { fromStored, type Given, type JsonNumber, type Kind, kindOf } from "./parameters.ts";

// Curves of one run, and the newest values of many.

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

// How values are distributed over the episodes of a run: rewards, and the numbers that tokens are colored by.

const maxValues = 12;
const bins = 12;

export interface RewardsQuery {
  filter?: string;
}

/**
 * A bin contains `low`; `high` is in the next bin, if there is one. With few values, each has a bin of its own, with
 * `low` equal to `high`.
 */
export interface RewardBin {
  low: number;
  high: number;
  count: number;
}

/**
 * Episodes by reward. An episode whose trajectories differ counts once in each of their bins.
 * @throws FilterError
 */
export function rewardHistogram(database: IndexDatabase, query: Given<RewardsQuery>) {
  const { sql, values } = filterCondition(query.filter ?? "");
  const known = `typeof(reward) IN ('integer', 'real') AND (${sql})`;
  const all = <Row>(text: string, given: readonly unknown[] = []) =>
    database.prepare(text).all([...given, ...values]) as Row[];
  const [{ unknown } = { unknown: 0 }] = all<{ unknown: number }>(
    `SELECT count(DISTINCT episode) AS unknown FROM trajectories WHERE reward IS NULL AND (${sql})`,
  );
  const single = all<RewardBin>(
    `SELECT reward AS low, reward AS high, count(DISTINCT episode) AS count FROM trajectories
     WHERE ${known} GROUP BY reward ORDER BY reward LIMIT ${maxValues + 1}`,
  );
  if (single.length <= maxValues) return { bins: single, unknown };
  const [range] = all<{ low: number; high: number }>(
    `SELECT min(reward) AS low, max(reward) AS high FROM trajectories WHERE ${known}`,
  );
  const { low = 0, high = 1 } = range ?? {};
  const edges = binEdges(low, high);
  const inner = edges.slice(1, -1);
  const counted = all<{ bin: number; count: number }>(
    `SELECT CASE ${inner.map((_, bin) => `WHEN reward < ? THEN ${bin}`).join(" ")} ELSE ${bins - 1} END AS bin,
     count(DISTINCT episode) AS count FROM trajectories WHERE ${known} GROUP BY bin`,
    inner,
  );
  const counts = new Map(counted.map(({ bin, count }) => [bin, count]));
  const ranges = edges.slice(1).map((high, bin) => ({ low: edges[bin]!, high, count: counts.get(bin) ?? 0 }));
  return { bins: ranges, unknown };
}

/** The bounds of the bins, with as few digits as a person would write in a filter. The first and the last contain all. */
export function binEdges(low: number, high: number): number[] {
  const width = (high - low) / bins;
  const digits = Math.max(0, Math.min(100, 1 - Math.floor(Math.log10(width))));
  const edges = Array.from({ length: bins + 1 }, (_, index) => Number((low + width * index).toFixed(digits)));
  edges[0] = Math.min(edges[0]!, low);
  edges[bins] = Math.max(edges[bins]!, high);
  return edges;
}

/** Limits the work beside a run: evenly spread episodes, until this many bytes are read. */
const maxSampled = { episodes: 64, bytes: 8 * 1024 * 1024 };
/** Has no divisor in common with `maxSampled.episodes`, so that each is taken once and the first few are spread, too. */
const stride = 37;

/**
 * The ranges of the numbers that tokens are colored by, so that a color means the same in all episodes of a run. They are
 * those of the tokens that are trained on, in evenly spread episodes. A number that is not recorded has no range.
 */
export function tokenScales(database: IndexDatabase, folder: string) {
  const { first, last } = database
    .prepare("SELECT min(row) AS first, max(row) AS last FROM trajectories")
    .get([]) as Record<"first" | "last", number | null>;
  const ranges: Partial<Record<ColoringName, Bounds>> = {};
  if (first === null || last === null) return { episodes: 0, ranges };
  // Without "+", SQLite would sort all first trajectories.
  const at = database.prepare(
    `SELECT key, length FROM trajectories JOIN details USING (episode)
     WHERE +part = 0 AND row >= ? ORDER BY row LIMIT 1`,
  );
  const read = new Set<string>();
  let bytes = 0;
  for (let count = 0; count < maxSampled.episodes && bytes < maxSampled.bytes; count++) {
    const share = ((count * stride) % maxSampled.episodes) / (maxSampled.episodes - 1);
    const found = at.get([Math.round(first + share * (last - first))]) as { key: string; length: number } | undefined;
    if (found === undefined || read.has(found.key)) continue;
    read.add(found.key);
    bytes += found.length;
    const shown = readable(() => episode(database, folder, found.key, undefined));
    for (const name of coloringNames) {
      const bounds = shown ? boundsOf(name, shown) : null;
      if (bounds === null) continue;
      const [low, high] = ranges[name] ?? bounds;
      ranges[name] = [Math.min(low, bounds[0]), Math.max(high, bounds[1])];
    }
  }
  return { episodes: read.size, ranges };
}

/** An episode that cannot be read does not keep the others from having a scale. */
function readable<Value>(read: () => Value): Value | undefined {
  try {
    return read();
  } catch (error) {
    if (error instanceof UserError) return undefined;
    throw error;
  }
}
