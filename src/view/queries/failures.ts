/** Failures by boundary and message. */
import { filterCondition } from "../filter/to-sql.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { rowsWhere, whereOf } from "./episode-list.ts";
import type { Given } from "./parameters.ts";

interface FailureRow {
  episode: number;
  step: number;
  failure: string;
  boundary: string;
  message: string;
}

const maxExamples = 5;

export interface FailuresQuery {
  filter?: string;
}

export function failures(database: IndexDatabase, query: Given<FailuresQuery>) {
  const { where, values } = whereOf(database, filterCondition(query.filter ?? ""));
  const failed = database
    .prepare(
      `SELECT episode, step, failure, boundary, message FROM trajectories JOIN details USING (episode)
       WHERE failure IS NOT NULL AND ${where} ORDER BY step, place`,
    )
    .all(values) as FailureRow[];
  const retried = database
    .prepare(
      `SELECT retries.episode, step, retries.failure, retries.boundary, retries.message
       FROM retries JOIN trajectories ON row = retries.episode WHERE row IN (SELECT row FROM trajectories WHERE ${where})
       ORDER BY step, place`,
    )
    .all(values) as FailureRow[];
  const terminations = database
    .prepare(
      `SELECT termination, count(*) AS count FROM trajectories WHERE ${where} GROUP BY termination ORDER BY count DESC`,
    )
    .all(values) as { termination: string; count: number }[];
  return {
    failures: byMessage(database, failed),
    /** Failed attempts that were retried. */
    retries: byMessage(database, retried, true),
    /** All episodes by how they ended. */
    terminations,
  };
}

/** Numbers, ids and addresses differ between failures of one cause. */
const differing = /0x[0-9a-f]+|[0-9a-f]{8,}|\d+(?:\.\d+)?/gi;
const partsOf = (message: string) => message.slice(0, 500).split(differing);

export type FailureGroup = ReturnType<typeof byMessage>[number];

/** Failures by boundary and cause, the most frequent first. */
function byMessage(database: IndexDatabase, rows: readonly FailureRow[], retried = false) {
  const groups = new Map<string, FailureRow[]>();
  for (const row of rows) {
    const name = JSON.stringify([row.failure, row.boundary, partsOf(row.message)]);
    const own = groups.get(name) ?? [];
    own.push(row);
    groups.set(name, own);
  }
  return [...groups.values()]
    .sort((left, right) => right.length - left.length)
    .map((own) => {
      const newest = own.at(-1)!;
      const episodes = [...new Set(own.map(({ episode }) => episode))].slice(-maxExamples).reverse();
      const marks = episodes.map(() => "?").join(", ");
      return {
        kind: newest.failure,
        boundary: newest.boundary,
        message: newest.message,
        count: own.length,
        steps: [own[0]!.step, newest.step] satisfies [first: number, last: number],
        /** Lists them. */
        filter: retried ? "retries>0" : failureFilter(newest),
        /** The newest. */
        examples: rowsWhere(database, `row IN (${marks}) ORDER BY step DESC, place`, episodes),
      };
    });
}

/** The longest part of the message that does not change. */
function failureFilter({ failure, boundary, message }: FailureRow): string {
  const longest = partsOf(message).reduce((best, part) => (part.trim().length > best.length ? part.trim() : best), "");
  const words = longest === "" ? "" : ` and message~"${longest.replaceAll(/["\\]/g, "\\$&")}"`;
  return `failure=${failure} and boundary=${boundary}${words}`;
}
