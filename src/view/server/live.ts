/** Server-sent events: new entries of the journal, and addresses that open pages should show. */
import { lstatSync } from "node:fs";
import { join } from "node:path";
import type { JournalLine } from "../../tracking/run-folder/journal.ts";
import { readJournalState } from "../index/index-journal.ts";
import { entriesFrom, type JournalPlace, offsetOf } from "../queries/journal-page.ts";
import { type RunState, runState } from "../queries/run.ts";
import type { OpenedRun, Viewer } from "./viewer.ts";

/** Writes one event; resolves when the client has taken it. */
type Send = (event: { event: string; data: string; id?: string }) => Promise<void>;

export interface Live {
  /** Sends events to one page until `signal` is aborted. @param after undefined: the end of the journal */
  follow(run: OpenedRun | undefined, after: number | undefined, send: Send, signal: AbortSignal): Promise<void>;
  /** @returns the number of open pages */
  show(url: string): number;
  /** Ends all connections. */
  close(): void;
}

const tickMilliseconds = 250;
const runsMilliseconds = 2000;
/** The most entries in one event. */
const maxEntries = 500;
/** Keeps proxies and tunnels from closing a silent connection. */
const pingMilliseconds = 15_000;

export function createLive(viewer: Viewer): Live {
  const pages = new Set<Send>();
  const closing = new AbortController();

  return {
    async follow(run, after, send, given) {
      const signal = AbortSignal.any([given, closing.signal]);
      pages.add(send);
      try {
        const followers = [
          followRuns(viewer, send),
          ...(run ? [followIndex(run, send), followJournal(run, after, send)] : [followAll(viewer, send)]),
        ];
        let pinged = Date.now();
        while (!signal.aborted) {
          for (const follower of followers) await follower();
          if (Date.now() - pinged > pingMilliseconds) {
            pinged = Date.now();
            await send({ event: "ping", data: "{}" });
          }
          await pause(tickMilliseconds, signal);
        }
      } finally {
        pages.delete(send);
      }
    },
    show(url) {
      for (const send of pages) void send(named("view", { url })).catch(() => {});
      return pages.size;
    },
    close: () => closing.abort(),
  };
}

/**
 * The events of `GET /api/events`. `id:` is the journal's sequence number, so a browser resumes with `Last-Event-ID`;
 * `after` is for the first connection (default: the end of the journal). Without `run`, there is no `journal`, and `changed`
 * is sent for each run that changes, at most every 2 s.
 */
export interface ServerEvents {
  /** One or more lines of the journal, in order. The `id:` is that of the last. */
  journal: JournalLine[];
  /** The index has grown: lists, curves and counts have changed. */
  changed: { run: string; step: number; episodes: number; indexing?: number; state: RunState };
  /** A run appeared or disappeared. */
  runs: { runs: string[] };
  /** Asks the page to open this address; see `POST /api/view`. */
  view: { url: string };
}

const named = <Name extends keyof ServerEvents>(event: Name, data: ServerEvents[Name], id?: number) => ({
  event,
  data: JSON.stringify(data),
  ...(id === undefined ? {} : { id: String(id) }),
});

/** Checks for news and sends them. Called at every tick. */
type Follower = () => Promise<void>;

function followRuns(viewer: Viewer, send: Send): Follower {
  let known = viewer.names().join("/");
  let looked = Date.now();
  return async () => {
    if (Date.now() - looked < runsMilliseconds) return;
    looked = Date.now();
    const runs = viewer.names();
    if (runs.join("/") === known) return;
    known = runs.join("/");
    await send(named("runs", { runs }));
  };
}

/** For the list of runs: sends which of them have changed. */
function followAll(viewer: Viewer, send: Send): Follower {
  const runs = new Map<string, { mark: string; follow: Follower | undefined }>();
  let looked = 0;
  return async () => {
    if (Date.now() - looked < runsMilliseconds) return;
    const isFirst = looked === 0;
    looked = Date.now();
    for (const name of viewer.names()) {
      const mark = markOf(viewer.folderOf(name));
      const known = runs.get(name);
      if (known?.mark === mark) continue;
      const run = { mark, follow: known?.follow };
      runs.set(name, run);
      if (isFirst) continue;
      try {
        run.follow ??= followIndex(viewer.open(name), send);
        await run.follow();
      } catch {
        // The run's row in the list shows why it cannot be read.
      }
    }
  };
}

/** Changes when a step ends, the journal grows, or the run is locked or unlocked. */
function markOf(folder: string): string {
  return ["events.jsonl", "metrics.jsonl", "episodes", ".lock"]
    .map((name) => {
      const stat = lstatSync(join(folder, name), { throwIfNoEntry: false });
      return stat === undefined ? "" : `${stat.ino}:${stat.size}:${stat.mtimeMs}`;
    })
    .join(" ");
}

function followJournal({ index }: OpenedRun, after: number | undefined, send: Send): Follower {
  let place: JournalPlace | undefined;
  return async () => {
    const state = readJournalState(index.database);
    if (place === undefined) {
      // A number beyond the end belongs to an earlier journal in the same folder.
      const seq = after === undefined ? state.seq : after > state.seq ? 0 : after;
      place = seq === state.seq ? { seq: 0, offset: state.offset } : { seq, offset: offsetOf(index.database, seq) };
    }
    // Another journal is in its place.
    if (place.offset > state.offset) place = { seq: 0, offset: 0 };
    for (let more = true; more; ) {
      const found = entriesFrom(index.folder, place, state.offset, maxEntries);
      // From here on, the place is exact.
      place = { seq: 0, offset: found.place.offset };
      ({ more } = found);
      if (found.entries.length > 0) await send(named("journal", found.entries, found.place.seq));
    }
  };
}

function followIndex({ name, index }: OpenedRun, send: Send): Follower {
  let sent = "";
  return async () => {
    await index.refresh(tickMilliseconds);
    const state = runState(index.folder, readJournalState(index.database));
    const mark = `${index.revision} ${state} ${index.share}`;
    if (mark === sent) return;
    sent = mark;
    const { step, episodes } = index.database
      .prepare(
        `SELECT (SELECT max(step) FROM steps WHERE kind = 'train') AS step,
                (SELECT count(*) FROM trajectories WHERE part = 0) AS episodes`,
      )
      .get([]) as { step: number | null; episodes: number };
    const indexing = index.share < 1 ? { indexing: index.share } : {};
    await send(named("changed", { run: name, step: step ?? 0, episodes, ...indexing, state }));
  };
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    signal.addEventListener("abort", end);
  });
}
