/** Caches the answers of the API, and fetches them again when the run has changed. */
import { type Signal, signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { Answer, Query, Route } from "../../src/apps/view/routes.ts";
import type { ApiError } from "../../src/apps/view/server.ts";
import { embedded } from "./address.ts";

export interface Loaded<T> {
  data?: T;
  error?: ApiError;
}

interface Entry {
  loaded: Signal<Loaded<unknown>>;
  /** The text of the answer. An unchanged answer is not rendered again. */
  text: string;
  shown: boolean;
}

/** Answers that are no longer shown, kept for the browser's back button. */
const maxHidden = 60;
const entries = new Map<string, Entry>();

/** The address of a route, e.g. `apiPath("/api/runs/:run/groups", { run: "toy", step: "12" })`. */
function apiPath<R extends Route>(route: R, values: Query<R>): string {
  const left: Record<string, string | undefined> = { ...values };
  const base = route.replace(/:(\w+)/g, (_, name: string) => {
    const value = left[name] ?? "";
    delete left[name];
    return encodeURIComponent(value);
  });
  const given = Object.entries(left).filter((pair): pair is [string, string] => Boolean(pair[1]));
  const query = new URLSearchParams(given);
  query.sort();
  return query.size === 0 ? base : `${base}?${query}`;
}

/** The answer of a route; reading it in a component draws the component again when it changes. */
export function answerTo<R extends Route>(route: R, values: Query<R>): Loaded<Answer<R>> {
  const path = apiPath(route, values);
  let entry = entries.get(path);
  if (entry === undefined) {
    entry = newEntry();
    entries.set(path, entry);
    void load(path, entry);
    dropOld();
  }
  return entry.loaded.value as Loaded<Answer<R>>;
}

/** The answer of a route. While another path loads, the previous data is shown and marked as stale. */
export function useAnswer<R extends Route>(route: R, values: Query<R>): Loaded<Answer<R>> & { stale: boolean } {
  const answer = answerTo(route, values);
  const { run } = values as { run?: string };
  const before = useRef<{ run: string | undefined; data: Answer<R> }>(undefined);
  if (answer.data !== undefined) before.current = { run, data: answer.data };
  const last = before.current?.run === run ? before.current?.data : undefined;
  if (answer.data !== undefined || answer.error !== undefined || last === undefined) return { ...answer, stale: false };
  return { data: last, stale: true };
}

/** The address of an image of a run's messages; undefined if this report does not contain it. */
export function imageAt(run: string, hash: string): string | undefined {
  const path = `/api/runs/${encodeURIComponent(run)}/media/${hash}`;
  return embedded === undefined ? path : (embedded[path] as string | undefined);
}

/** Fetches the shown answers under these paths again, and drops the others. */
export function refresh(matches: (path: string) => boolean): void {
  for (const [path, entry] of entries) {
    if (!matches(path)) continue;
    if (entry.shown) void load(path, entry);
    else entries.delete(path);
  }
}

function newEntry(): Entry {
  const entry: Entry = {
    loaded: signal({}, { watched: () => show(true), unwatched: () => show(false) }),
    text: "",
    shown: false,
  };
  const show = (shown: boolean) => {
    entry.shown = shown;
  };
  return entry;
}

function dropOld(): void {
  const hidden = [...entries].filter(([, { shown }]) => !shown);
  for (const [path] of hidden.slice(0, Math.max(0, hidden.length - maxHidden))) entries.delete(path);
}

async function load(path: string, entry: Entry): Promise<void> {
  if (embedded !== undefined) {
    const data = embedded[path];
    entry.loaded.value =
      data === undefined ? { error: { error: "This report does not contain this part." } } : { data };
    return;
  }
  try {
    const response = await fetch(path);
    const text = await response.text();
    if (text === entry.text) return;
    entry.text = text;
    entry.loaded.value = response.ok ? { data: JSON.parse(text) } : { error: readError(text, response) };
  } catch {
    entry.text = "";
    // The old data stays on the page; the top bar says that the connection is lost.
    if (entry.loaded.peek().data !== undefined) return;
    entry.loaded.value = { error: { error: "The viewer does not answer.", hint: "Start hone view again." } };
  }
}

function readError(text: string, response: Response): ApiError {
  try {
    return JSON.parse(text) as ApiError;
  } catch {
    return { error: `The viewer answered with status ${response.status}.` };
  }
}
