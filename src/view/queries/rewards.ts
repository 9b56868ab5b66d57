/** How many episodes have which reward. */
import type { RewardBin, RewardHistogram, RewardsQuery } from "../api.ts";
import { filterCondition } from "../filter/to-sql.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import type { Given } from "./parameters.ts";

const mostValues = 12;
const bins = 12;

/** @throws FilterError */
export function rewardHistogram(database: IndexDatabase, query: Given<RewardsQuery>): RewardHistogram {
  const { sql, values } = filterCondition(query.filter ?? "");
  const known = `typeof(reward) IN ('integer', 'real') AND (${sql})`;
  const all = <Row>(text: string, given: readonly unknown[] = []) =>
    database.prepare(text).all([...given, ...values]) as Row[];
  const [{ unknown } = { unknown: 0 }] = all<{ unknown: number }>(
    `SELECT count(DISTINCT episode) AS unknown FROM trajectories WHERE reward IS NULL AND (${sql})`,
  );
  const single = all<RewardBin>(
    `SELECT reward AS low, reward AS high, count(DISTINCT episode) AS count FROM trajectories
     WHERE ${known} GROUP BY reward ORDER BY reward LIMIT ${mostValues + 1}`,
  );
  if (single.length <= mostValues) return { bins: single, unknown };
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
