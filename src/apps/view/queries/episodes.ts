/** Lists of episodes from the index, by filter and by full text. */
import { UserError } from "../../../base/errors.ts";
import { append, zip } from "../../../base/values.ts";
import { type Condition, filterCondition, searchTerms, searchWords } from "../../../tracking/filter.ts";
import type { IndexDatabase } from "../database.ts";
import type { EpisodeColumns, TrajectoryColumns } from "../index-episodes.ts";
import { fromStored, type Given, type Kind, oneOf, optional, required, wholeNumberOf } from "./parameters.ts";

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
    kind: Kind;
    signal: number | null;
  };

/** By step, then validation after training, then place in the file. */
const byPlace = "step DIR, kind DIR, place DIR";

const sorts = {
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

export interface EpisodesQuery {
  /** The filter language; see `/api/fields`. An episode matches if one of its trajectories does. */
  filter?: string;
  /** Default: `newest`, with `order` "desc". */
  sort?: SortColumn;
  order?: "asc" | "desc";
  /** Default 100, at most 1000. */
  limit?: string;
  offset?: string;
}

export type SortColumn = keyof typeof sorts;
export type EpisodeList = ReturnType<typeof episodeList>;
export type EpisodeRow = ReturnType<typeof toRow>;
export type TrajectoryRow = EpisodeRow["trajectories"][number];

/** @throws UserError for a parameter or filter that is not valid */
export function episodeList(database: IndexDatabase, query: Given<EpisodesQuery>) {
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
  return {
    /** The number of matching episodes. */
    total,
    offset,
    rows: toRows(database, loadRows(database, found), matching),
  };
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

function loadRows(database: IndexDatabase, rows: readonly number[]): IndexedRow[] {
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
  for (const other of others) append(byEpisode, other.episode, other);
  const found =
    matching &&
    (database
      .prepare(`SELECT episode, part FROM trajectories WHERE episode IN (${marks}) AND (${matching.sql}) ORDER BY part`)
      .all([...episodes, ...matching.values]) as { episode: number; part: number }[]);
  return rows.map((row) => {
    const matched = found?.filter(({ episode }) => episode === row.episode).map(({ part }) => part);
    return toRow(row, byEpisode.get(row.episode) ?? [], matched);
  });
}

function toRow(row: IndexedRow, others: readonly IndexedRow[], matched: number[] | undefined) {
  const { key, step, kind, task, rollout, termination, tokens, turns, tools, seconds, retries, preview } = row;
  const { failure, boundary, message, oldest, version } = row;
  return {
    /** `t12.5`: the sixth episode of training step 12; `v10.0`: the first of the validation after step 10. */
    key,
    id: `${task}:${rollout}`,
    step,
    kind,
    task,
    rollout,
    /** The reward of the first trajectory. Null if unknown, never 0. */
    reward: fromStored(row.reward),
    /** The advantage of the first trajectory, or its mean over tokens. Null if not trained on, or in a validation. */
    advantage: fromStored(row.advantage),
    correct: row.correct === null ? null : row.correct === 1,
    termination,
    failure: failure === null ? null : { kind: failure, boundary: boundary ?? "", message: message ?? "" },
    /** Sampled tokens, model calls and tool calls. */
    tokens,
    turns,
    tools,
    seconds,
    retries,
    /** The weights that sampled its tokens; null without tokens. */
    versions:
      oldest === null || version === null ? null : ([oldest, version] satisfies [oldest: number, newest: number]),
    /** Whether all rewards of its group are equal, so that there is no advantage. Null without a group, or in a validation. */
    zeroSignal: row.signal === null ? null : row.signal === 0,
    trajectories: [row, ...others].flatMap(toTrajectory),
    /** The start of the last reply, in one line. */
    preview,
    ...optional({
      /**
       * Indices of the trajectories that match, if the filter compares fields of single trajectories and the run has
       * episodes with several. A list that is sorted by reward or advantage uses that of the first of them.
       */
      matched,
    }),
  };
}

function toTrajectory({ role, instance, reward, advantage, part_tokens, part_turns }: IndexedRow) {
  if (role === null) return [];
  return [
    {
      role,
      /** Distinguishes several trajectories of the same role. */
      ...optional({ instance: instance ?? undefined }),
      reward: fromStored(reward),
      advantage: fromStored(advantage),
      tokens: part_tokens,
      turns: part_turns,
    },
  ];
}

// Full text search.

export interface SearchQuery {
  /** Words; all must occur, in this order and next to each other if in double quotes. */
  q: string;
  filter?: string;
  /** Default 50, at most 200. */
  limit?: string;
  offset?: string;
}

export type SearchResults = ReturnType<typeof search>;

/** @throws UserError if there is nothing to search */
export function search(database: IndexDatabase, query: Given<SearchQuery>) {
  const words = required("q", query.q);
  const terms = searchTerms(words);
  if (terms === undefined) throw new UserError("a text search needs a letter or a digit");
  const limit = wholeNumberOf("limit", query.limit, 50, 200);
  const offset = wholeNumberOf("offset", query.offset, 0);
  const { where, values, matching } = whereOf(database, filterCondition(query.filter ?? ""));
  // One query returns both the total number of matches and the rows of the page. Without rows, it returns one row with `row` null.
  const found = database
    .prepare(
      `WITH found AS MATERIALIZED (
         SELECT row, step, kind, place FROM trajectories
         WHERE ${where} AND episode IN (SELECT rowid FROM texts WHERE texts MATCH ?)
       )
       SELECT total, row FROM (SELECT count(*) AS total FROM found)
       LEFT JOIN (SELECT row FROM found ORDER BY step DESC, kind DESC, place LIMIT ${limit} OFFSET ${offset})`,
    )
    .all([...values, terms]) as { total: number; row: number | null }[];
  const rows = loadRows(
    database,
    found.flatMap(({ row }) => row ?? []),
  );
  const textOf = database.prepare("SELECT text FROM texts WHERE rowid = ?");
  const hits = zip(rows, toRows(database, rows, matching)).map(([indexed, episode]) => {
    const { text } = textOf.get([indexed.episode]) as { text: string };
    return { episode, ...snippetOf(text, words) };
  });
  return { total: found[0]?.total ?? 0, hits };
}

/** Characters before and after a match. */
const around = { before: 60, after: 120 };

/** The text around the first of the words. */
function snippetOf(text: string, words: string) {
  const found = searchWords(words).exec(text);
  const at = found?.index ?? 0;
  const end = at + (found?.[0].length ?? 0);
  const from = at <= around.before ? 0 : text.indexOf(" ", at - around.before) + 1 || at;
  const start = Math.min(from, at);
  const head = start > 0 ? "..." : "";
  const tail = text.length > end + around.after ? "..." : "";
  const snippet = head + text.slice(start, end + around.after) + tail;
  const match: [start: number, end: number] | null = found
    ? [head.length + at - start, head.length + end - start]
    : null;
  return { snippet, match };
}
