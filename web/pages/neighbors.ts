/** The episodes before and after one: in the list from which it was opened, or in its step. */
import type { Episode, EpisodeList, SearchResults } from "../../src/view/api.ts";
import { parameter } from "../state/address.ts";
import { embedded } from "../state/embedded.ts";
import { answerAt, apiPath } from "../state/fetch.ts";
import { listParameters } from "../state/place.ts";

export interface Neighbors {
  previous: string | null;
  next: string | null;
  /** The place in the list, from 0; undefined if the episode was not opened from a list. */
  list?: { place: number; total: number } | undefined;
}

/** The list of a live run grows at its start: the episode is searched this far around its old place. */
const around = 100;

/** Reads signals, so that a component is drawn again when the list changes. */
export function neighborsOf(run: string, { key, previous, next }: Episode): Neighbors {
  if (embedded !== undefined || Object.values(listParameters()).every((value) => value === ""))
    return { previous, next };
  const place = Number(parameter("place")) || 0;
  // In an edited link the place can be wrong: then the neighbors are those in the step.
  return (
    inPart(run, key, Math.max(0, place - 1), 3) ??
    inPart(run, key, Math.max(0, place - around), 2 * around) ?? { previous, next }
  );
}

/** Undefined if this part of the list does not have the episode and both of its neighbors. */
function inPart(run: string, key: string, offset: number, limit: number): Neighbors | undefined {
  const part = keysOf(run, offset, limit);
  if (part === undefined) return { previous: null, next: null };
  const { keys, total } = part;
  const at = keys.indexOf(key);
  const place = offset + at;
  if (at < 0) return undefined;
  if ((at === 0 && place > 0) || (at === keys.length - 1 && place < total - 1)) return undefined;
  return { previous: keys[at - 1] ?? null, next: keys[at + 1] ?? null, list: { place, total } };
}

/** Undefined until it is answered. */
function keysOf(run: string, offset: number, limit: number): { keys: string[]; total: number } | undefined {
  const { q, filter, sort, order } = listParameters();
  const part = { run, filter, offset: String(offset), limit: String(limit) };
  if (q !== "") {
    const { data } = answerAt<SearchResults>(apiPath("/api/runs/:run/search", { ...part, q }));
    return data && { total: data.total, keys: data.hits.map(({ episode }) => episode.key) };
  }
  const sorted = { sort: (sort || "newest") as "newest", order: order === "asc" ? "asc" : "desc" } as const;
  const { data } = answerAt<EpisodeList>(apiPath("/api/runs/:run/episodes", { ...part, ...sorted }));
  return data && { total: data.total, keys: data.rows.map(({ key }) => key) };
}
