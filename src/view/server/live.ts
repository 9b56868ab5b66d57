/** Server-sent events: new entries of the journal, and addresses that open pages should show. */
import type { JournalEntry, ServerEvents } from "../api.ts";
import { readJournalState } from "../index/index-journal.ts";
import { entriesFrom, offsetOf } from "../queries/journal-page.ts";
import { runState } from "../queries/run.ts";
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
/** Entries in one event. */
const most = 500;
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
          ...(run ? [followJournal(run, after, send), followIndex(run, send)] : []),
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

function followJournal({ index }: OpenedRun, after: number | undefined, send: Send): Follower {
  let place: { seq: number; offset: number } | undefined;
  return async () => {
    if (place === undefined) {
      await index.refresh();
      const state = readJournalState(index.database);
      // A number beyond the end belongs to an earlier journal in the same folder.
      const seq = after === undefined ? state.seq : after > state.seq ? 0 : after;
      place = { seq, offset: seq === state.seq ? state.offset : offsetOf(index.database, seq) };
    }
    for (let more = true; more; ) {
      const found: { entries: JournalEntry[]; offset: number; seq: number; more: boolean } = entriesFrom(
        index.folder,
        place.offset,
        place.seq,
        most,
      );
      place = { seq: found.seq, offset: found.offset };
      ({ more } = found);
      if (found.entries.length > 0) await send(named("journal", found.entries, found.seq));
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
