/** Rows of episodes from the index. */
import { zip } from "../../arrays.ts";
import type { EpisodeList, EpisodeRow, EpisodesQuery, SortColumn, TrajectoryRow } from "../api.ts";
import { type Condition, filterCondition } from "../filter/to-sql.ts";
import type { EpisodeColumns, TrajectoryColumns } from "../index/episode-rows.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { type Given, oneOf, wholeNumberOf } from "./parameters.ts";
import { fromStored } from "./stored.ts";

/** Columns of a row of `trajectories`, as SQLite returns them. */
export type IndexedRow = EpisodeColumns &
  TrajectoryColumns & {
    episode: number;
    key: string;
    file: string;
    offset: number;
    length: number;
    place: number;
    step: number;
    kind: "train" | "validation";
    signal: number | null;
  };

/** By step, then validation after training, then place in the file. */
const byPlace = "step DIR, kind DIR, place DIR";

const sorts: Record<SortColumn, string> = {
  newest: byPlace,
  step: byPlace,
  task: "task DIR, rollout DIR",
  reward: "reward DIR",
  advantage: "advantage DIR",
  termination: "termination DIR",
  tokens: "tokens DIR",
  turns: "turns DIR",
  seconds: "seconds DIR",
  version: "version DIR",
};

/** @throws UserError for a parameter or filter that is not valid */
export function episodeList(database: IndexDatabase, query: Given<EpisodesQuery>): EpisodeList {
  const condition = filterCondition(query.filter ?? "");
  const sort = oneOf("sort", query.sort ?? "newest", Object.keys(sorts) as SortColumn[]);
  const order = oneOf("order", query.order ?? (sort === "newest" ? "desc" : "asc"), ["asc", "desc"]);
  const limit = wholeNumberOf("limit", query.limit, 100, 1000);
  const offset = wholeNumberOf("offset", query.offset, 0);
  const { where, values, matching } = whereOf(database, condition);
  const { total } = database.prepare(`SELECT count(*) AS total FROM trajectories WHERE ${where}`).get(values) as {
    total: number;
  };
  const by = (columns: string) => {
    const places = `${columns.replaceAll("DIR", `${order} NULLS LAST`)}, step DESC, place`;
    return `ORDER BY ${places} LIMIT ${limit} OFFSET ${offset}`;
  };
  const found =
    matching && (sort === "reward" || sort === "advantage")
      ? // The list shows the value of the first trajectory that matches.
        rowsOf(
          database,
          `JOIN (SELECT episode AS one, ${sort} AS matched, min(part) FROM trajectories WHERE ${matching.sql} GROUP BY episode)
           ON row = one ${by("matched DIR")}`,
          values,
        )
      : rowsOf(database, `WHERE ${where} ${by(sorts[sort])}`, values);
  return { total, offset, rows: toRows(database, loadRows(database, found), matching) };
}

/** Which trajectories match, if several of an episode can. */
type Matching = Pick<Condition, "sql" | "values"> | undefined;

/** The first trajectories of the episodes that match. */
export function whereOf(database: IndexDatabase, { sql, values, perTrajectory }: Condition) {
  const several = perTrajectory && database.prepare("SELECT 1 FROM trajectories WHERE part = 1 LIMIT 1").get([]);
  const matches = several ? `row IN (SELECT episode FROM trajectories WHERE ${sql})` : sql;
  const matching: Matching = several ? { sql, values } : undefined;
  return { where: `part = 0 AND (${matches})`, values, matching };
}

/** @param rest the condition, order and limit; `part = 0` is the caller's */
export function rowsWhere(
  database: IndexDatabase,
  rest: string,
  values: readonly unknown[],
  matching?: Matching,
): EpisodeRow[] {
  return toRows(database, wholeRows(database, rest, values), matching);
}

/** Finds and sorts only the rows' numbers: whole rows are long. */
export function wholeRows(database: IndexDatabase, rest: string, values: readonly unknown[]): IndexedRow[] {
  return loadRows(database, rowsOf(database, `WHERE ${rest}`, values));
}

function rowsOf(database: IndexDatabase, rest: string, values: readonly unknown[]): number[] {
  const found = database.prepare(`SELECT row FROM trajectories ${rest}`).all([...values]) as { row: number }[];
  return found.map(({ row }) => row);
}

export function loadRows(database: IndexDatabase, rows: readonly number[]): IndexedRow[] {
  const whole = database.prepare("SELECT * FROM trajectories JOIN details USING (episode) WHERE row = ?");
  return rows.map((row) => whole.get([row]) as IndexedRow);
}

export function toRows(database: IndexDatabase, rows: readonly IndexedRow[], matching?: Matching): EpisodeRow[] {
  const marks = rows.map(() => "?").join(", ");
  const episodes = rows.map(({ episode }) => episode);
  const others = database
    .prepare(`SELECT * FROM trajectories WHERE part > 0 AND episode IN (${marks}) ORDER BY part`)
    .all(episodes) as IndexedRow[];
  const byEpisode = new Map<number, IndexedRow[]>();
  for (const other of others) byEpisode.set(other.episode, [...(byEpisode.get(other.episode) ?? []), other]);
  const shown = rows.map((row) => toRow(row, byEpisode.get(row.episode) ?? []));
  if (matching === undefined) return shown;
  const found = database
    .prepare(`SELECT episode, part FROM trajectories WHERE episode IN (${marks}) AND (${matching.sql}) ORDER BY part`)
    .all([...episodes, ...matching.values]) as { episode: number; part: number }[];
  return zip(rows, shown).map(([{ episode }, row]) => {
    return { ...row, matched: found.filter((one) => one.episode === episode).map(({ part }) => part) };
  });
}

function toRow(row: IndexedRow, others: readonly IndexedRow[]): EpisodeRow {
  const { key, step, kind, task, rollout, termination, tokens, turns, tools, seconds, retries, preview } = row;
  const { failure, boundary, message, oldest, version } = row;
  return {
    key,
    id: `${task}:${rollout}`,
    step,
    kind,
    task,
    rollout,
    reward: fromStored(row.reward),
    advantage: fromStored(row.advantage),
    correct: row.correct === null ? null : row.correct === 1,
    termination,
    failure: failure === null ? null : { kind: failure, boundary: boundary ?? "", message: message ?? "" },
    tokens,
    turns,
    tools,
    seconds,
    retries,
    versions: oldest === null || version === null ? null : [oldest, version],
    zeroSignal: row.signal === null ? null : row.signal === 0,
    trajectories: [row, ...others].flatMap(toTrajectory),
    preview,
  };
}

function toTrajectory({ role, instance, reward, advantage, part_tokens, part_turns }: IndexedRow): TrajectoryRow[] {
  if (role === null) return [];
  return [
    {
      role,
      instance: instance ?? undefined,
      reward: fromStored(reward),
      advantage: fromStored(advantage),
      tokens: part_tokens,
      turns: part_turns,
    },
  ];
}
