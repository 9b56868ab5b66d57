/** The runs that are viewed, each with its index, and the server-sent events about them. */
import { type Dirent, existsSync, lstatSync, readdirSync, realpathSync, type Stats, statSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { UserError } from "../../base/errors.ts";
import type { JournalLine } from "../../tracking/journal.ts";
import { openPieces, type Pieces } from "../../tracking/json-lines.ts";
import { newestRun } from "../../tracking/run-folder.ts";
import { defaultCache, removeUnused } from "./database.ts";
import { entriesFrom, type JournalPlace, offsetOf } from "./queries/failures.ts";
import { type RunState, runState } from "./queries/run.ts";
import { openRunIndex, type RunIndex, readJournalState } from "./run-index.ts";

export interface Viewer {
  /** The folder that is viewed. */
  readonly folder: string;
  /** Whether the folder is a single run. An empty folder may become a run or a folder of runs. */
  readonly single: boolean;
  /** Names of the runs' folders, the newest first. */
  names(): string[];
  /** @throws UserError if there is no such run */
  folderOf(name: string): string;
  /** @throws UserError if there is no such run */
  open(name: string): OpenedRun;
  close(): void;
}

export interface OpenedRun {
  readonly name: string;
  readonly index: RunIndex;
  /** Texts of tokens; undefined without a tokenizer in the run folder. */
  pieces(): Pieces | undefined;
}

/** Files of any kind: a run whose files are damaged is listed, with the problem. */
const isRun = (folder: string) =>
  ["config.yaml", "metrics.jsonl", "events.jsonl"].some((name) => statOf(join(folder, name)) !== undefined);

/** Undefined for a file that does not exist, e.g. no longer, or that this user cannot see. */
function statOf(path: string): Stats | undefined {
  try {
    return lstatSync(path, { throwIfNoEntry: false });
  } catch {
    return undefined;
  }
}

/**
 * @param path a run folder, or a folder of runs
 * @param cache the folder of the indexes
 * @throws UserError if it is neither
 */
export function openViewer(path: string, cache: string = defaultCache()): Viewer {
  if (!existsSync(path) || !statSync(path).isDirectory()) {
    throw new UserError(`${path} is neither a run folder nor a folder of runs`, {
      hint: newestRun(),
    });
  }
  const folder = realpathSync(path);
  const isSingle = () => isRun(folder);
  const opened = new Map<string, OpenedRun>();
  removeUnused(cache);

  function names(): string[] {
    if (isSingle()) return [basename(folder)];
    return readdirSync(folder, { withFileTypes: true })
      .filter((entry) => entry.isDirectory() && isRun(join(folder, entry.name)))
      .map(({ name }) => ({ name, time: statOf(join(folder, name))?.birthtimeMs ?? 0 }))
      .sort((left, right) => right.time - left.time || (left.name < right.name ? 1 : -1))
      .map(({ name }) => name);
  }
  // Runs may be created later in a folder without files of another kind.
  const isOther = (entry: Dirent) => entry.isFile() && !entry.name.startsWith(".");
  if (names().length === 0 && readdirSync(folder, { withFileTypes: true }).some(isOther)) {
    throw new UserError(`${path} is not a run folder, and contains none`, {
      hint: newestRun(),
    });
  }

  const isName = (name: string) =>
    isSingle()
      ? name === basename(folder)
      : // A name cannot lead to another folder.
        basename(name) === name &&
        !/^\.{0,2}$|\0/.test(name) &&
        statOf(join(folder, name))?.isDirectory() === true &&
        isRun(join(folder, name));

  function folderOf(name: string): string {
    if (isName(name)) return isSingle() ? folder : join(folder, name);
    throw new UserError(`${isSingle() ? dirname(folder) : folder} has no run ${name}`, { code: "not_found" });
  }

  return {
    folder,
    get single() {
      return isSingle();
    },
    names,
    folderOf,
    open(name) {
      const found = opened.get(name);
      if (!isName(name)) {
        found?.index.close();
        opened.delete(name);
      }
      const at = folderOf(name);
      if (found) return found;
      let pieces: { found: Pieces | undefined } | undefined;
      const run: OpenedRun = {
        name,
        index: openRunIndex(at, cache),
        pieces() {
          if (pieces?.found === undefined) pieces = { found: openPieces(at) };
          return pieces.found;
        },
      };
      opened.set(name, run);
      return run;
    },
    close() {
      for (const { index } of opened.values()) index.close();
      opened.clear();
    },
  };
}

// Server-sent events: new entries of the journal, and addresses that open pages should show.

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
