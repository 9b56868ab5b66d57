/** The ranges of the numbers that tokens are colored by, so that a color means the same in all episodes of a run. */
import { UserError } from "../../errors.ts";
import type { TokenScales } from "../api.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { type Bounds, boundsOf, type ColoringName, coloringNames } from "../token-scale.ts";
import { episode } from "./episode.ts";

/** Limits the work beside a run: evenly spread episodes, until this many bytes are read. */
const most = { episodes: 64, bytes: 8 * 1024 * 1024 };
/** Has no divisor in common with `most.episodes`, so that each is taken once and the first few are spread, too. */
const stride = 37;

export function tokenScales(database: IndexDatabase, folder: string): TokenScales {
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
  for (let count = 0; count < most.episodes && bytes < most.bytes; count++) {
    const share = ((count * stride) % most.episodes) / (most.episodes - 1);
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
