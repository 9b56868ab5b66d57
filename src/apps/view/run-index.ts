/**
 * The index of a run: an SQLite file in the user's cache folder, derived from the run folder. It is outside the run, so that read-only
 * folders can be viewed and the viewer cannot change a run; two viewers of one run share it, and a damaged or deleted one is built
 * again. It grows by byte offset, in slices of 25 ms between requests: this file adds events.jsonl and metrics.jsonl, index-episodes.ts
 * the episodes.
 *
 * The state of a run does not come from the index, which may be older than the journal: it comes from the folder's lock and, if the
 * folder is not locked, from the journal's last line.
 */
import { existsSync } from "node:fs";
import { setImmediate as nextTurn } from "node:timers/promises";
import { UserError } from "../../base/errors.ts";
import { eventOf, type JournalEvent, journalName, readJournalLine } from "../../tracking/journal.ts";
import { metricsFile, type ReadMetricsLine, readMetricsLine } from "../../tracking/run-folder.ts";
import {
  cutText,
  databaseFile,
  type IndexDatabase,
  openDatabase,
  readState,
  removeDatabase,
  stored,
  writeState,
} from "./database.ts";
import { type EpisodeIndexer, followLines, indexEpisodes } from "./index-episodes.ts";

// The index of one run: follows the run folder, in slices, so that a server stays responsive.

export interface RunIndex {
  /** The run folder. */
  readonly folder: string;
  /** Callers must not keep the database, because a damaged one is replaced. */
  readonly database: IndexDatabase;
  /** The share of the episode files that is indexed; 1: everything. */
  readonly share: number;
  /** Increases whenever something was added. */
  readonly revision: number;
  /**
   * Brings the index up to date, or as far as `milliseconds` allow. Calls made at the same time share the work.
   * @returns whether it is up to date
   */
  refresh(milliseconds?: number): Promise<boolean>;
  /** Deletes a damaged index and starts a new one. */
  rebuild(): void;
  close(): void;
}

const sliceMilliseconds = 25;

/** @param cache the folder of all indexes */
export function openRunIndex(folder: string, cache: string): RunIndex {
  const file = databaseFile(folder, cache);
  let { database, episodes } = open();
  let share = 0;
  let revision = 0;
  let working: Promise<boolean> | undefined;
  let closed = false;

  /** @returns whether everything is indexed */
  function slice(): boolean {
    const until = performance.now() + sliceMilliseconds;
    database.exec("BEGIN IMMEDIATE");
    try {
      const changesBefore = changes();
      const metrics = indexMetrics(database, folder, until);
      const journal = indexJournal(database, folder, until);
      share = episodes.advance(until);
      if (changes() !== changesBefore) revision++;
      database.exec("COMMIT");
      return metrics && journal && share >= 1;
    } catch (error) {
      if (database.inTransaction) database.exec("ROLLBACK");
      throw error;
    }
  }

  const changes = () => (database.prepare("SELECT total_changes() AS count").get([]) as { count: number }).count;

  function open(): { database: IndexDatabase; episodes: EpisodeIndexer } {
    const found = openDatabase(file);
    try {
      return { database: found, episodes: indexEpisodes(found, folder) };
    } catch {
      found.close();
      removeDatabase(file);
      const database = openDatabase(file);
      return { database, episodes: indexEpisodes(database, folder) };
    }
  }

  function rebuild(): void {
    database.close();
    removeDatabase(file);
    ({ database, episodes } = open());
  }

  async function work(until: number): Promise<boolean> {
    let failures = 0;
    while (!closed && existsSync(folder)) {
      try {
        if (slice()) return true;
        failures = 0;
      } catch (error) {
        failures++;
        // The first failure may be a change of the run folder during reading; after a second one the index counts as damaged.
        if (failures === 2) rebuild();
        if (failures > 2) throw error;
      }
      if (performance.now() > until) return false;
      await nextTurn();
    }
    if (closed) return false;
    throw new UserError(`${folder} no longer exists`, { code: "not_found" });
  }

  return {
    folder,
    get database() {
      return database;
    },
    get share() {
      return share;
    },
    get revision() {
      return revision;
    },
    async refresh(milliseconds = 300) {
      working ??= work(performance.now() + milliseconds).finally(() => {
        working = undefined;
      });
      return await working;
    },
    rebuild,
    close() {
      closed = true;
      database.close();
    },
  };
}

// Adds events.jsonl to the index: the times of rollouts and phases, notes, and the state of the run.

/** The state of the run according to the journal so far. */
export interface JournalState {
  /** Where the last event ends in the file. */
  offset: number;
  /** Number and time of the last event. */
  seq: number;
  time: number;
  started: number | null;
  totalSteps: number | null;
  text: string[];
  /** The current step, and when it began. */
  step: number;
  stepBegan: number;
  doing: string | null;
  /** Undefined while the run continues. */
  end?: { reason: "done" | "stopped" | "failed"; text?: string; report?: string[] };
}

const newState: JournalState = {
  offset: 0,
  seq: 0,
  time: 0,
  started: null,
  totalSteps: null,
  text: [],
  step: 0,
  stepBegan: 0,
  doing: null,
};

export const readJournalState = (database: IndexDatabase): JournalState =>
  readState<JournalState>(database, "journal") ?? structuredClone(newState);

/** The position of every n-th line is recorded, so that any event number is found quickly. */
const linesBetweenMarks = 500;

/** @returns whether everything is indexed */
function indexJournal(database: IndexDatabase, run: string, until: number): boolean {
  let state = readJournalState(database);
  const { offset: before } = state;
  const put = statements(database);
  const isDone = followLines(database, run, journalName, until, {
    forget() {
      for (const table of ["marks", "phases", "windows", "rollouts", "weights", "notes"])
        database.exec(`DELETE FROM ${table}`);
      state = structuredClone(newState);
      writeState(database, "journal", state);
    },
    read(text) {
      const line = readJournalLine(text);
      if (line.seq === state.seq) throw new Error(`it has the number of the line before, ${line.seq}`);
      return { line, event: eventOf(line) };
    },
    add({ line: { seq, time }, event }, { offset, next }) {
      // Also after lines that are skipped, which may be long.
      const isMarked = Math.floor(seq / linesBetweenMarks) > Math.floor(state.seq / linesBetweenMarks);
      if (isMarked || offset !== state.offset) put.mark.run([seq, offset]);
      if (event !== undefined) apply(event, time, { offset, end: next }, state, put);
      Object.assign(state, { seq, time, offset: next });
    },
  });
  if (state.offset !== before) writeState(database, "journal", state);
  return isDone;
}

type Statements = ReturnType<typeof statements>;

const statements = (database: IndexDatabase) => ({
  mark: database.prepare("INSERT OR REPLACE INTO marks (seq, offset) VALUES (?, ?)"),
  note: database.prepare("INSERT INTO notes (time, kind, step, text) VALUES (?, ?, ?, ?)"),
  phase: database.prepare("INSERT INTO phases (step, name, began, ended) VALUES (?, ?, ?, ?)"),
  weights: database.prepare("INSERT INTO weights (time, version, step) VALUES (?, ?, ?)"),
  window: database.prepare("INSERT OR REPLACE INTO windows (kind, step, began, ended) VALUES (?, ?, ?, ?)"),
  rollout: database.prepare(
    "INSERT INTO rollouts (kind, step, task, rollout, queued, retries, first) VALUES (?, ?, ?, ?, ?, 0, ?)",
  ),
  retry: database.prepare(`UPDATE rollouts SET retries = ? ${lastRollout}`),
  rolloutEnd: database.prepare(
    `UPDATE rollouts SET ended = ?, outcome = ?, retries = ?, reward = ?, last = ? ${lastRollout}`,
  ),
  cutOff: database.prepare("UPDATE rollouts SET ended = ?, last = ? WHERE ended IS NULL"),
});

const lastRollout =
  "WHERE rowid = (SELECT max(rowid) FROM rollouts WHERE kind = ? AND task = ? AND rollout = ? AND ended IS NULL)";

const kindOf = (purpose: "train" | "validate") => (purpose === "train" ? "train" : "validation");

function apply(
  entry: JournalEvent,
  time: number,
  place: { offset: number; end: number },
  state: JournalState,
  put: Statements,
): void {
  switch (entry.kind) {
    case "run-start":
      // Rollouts of a killed process have no end event.
      put.cutOff.run([state.time, place.offset]);
      state.started ??= time;
      state.totalSteps = Number.isFinite(entry.totalSteps) ? entry.totalSteps : null;
      state.text = [...entry.text];
      state.step = entry.step + 1;
      state.stepBegan = time;
      state.doing = null;
      delete state.end;
      return;
    case "setup-status":
      state.doing = entry.text;
      return;
    case "rollouts-queued": {
      state.doing = entry.purpose === "train" ? `rollouts of step ${entry.step}` : "validation";
      const kind = kindOf(entry.purpose);
      if (kind === "train" && entry.step === state.step) put.window.run([kind, entry.step, state.stepBegan, null]);
      for (const { task, first, count } of entry.tasks) {
        for (let rollout = first; rollout < first + count; rollout++) {
          put.rollout.run([kind, entry.step, task, rollout, time, place.offset]);
        }
      }
      return;
    }
    case "rollout": {
      const rollout = [kindOf(entry.purpose), entry.task, entry.rollout];
      if (entry.state === "retry") put.retry.run([entry.attempt + 1, ...rollout]);
      if (entry.state === "end") {
        const outcome = entry.failure === undefined ? "done" : "failed";
        put.rolloutEnd.run([time, outcome, entry.attempt, stored(entry.reward), place.end, ...rollout]);
      }
      return;
    }
    case "phase-end":
      put.phase.run([entry.step, entry.name, time - entry.seconds * 1000, time]);
      if (entry.name === "validation" || entry.name === "save") state.stepBegan = time;
      state.doing =
        entry.name === "rollout" || entry.name === "buffer_wait" ? `update of step ${entry.step}` : state.doing;
      return;
    case "weights":
      put.weights.run([time, entry.version, entry.step]);
      return;
    case "step-end":
      put.window.run(["train", entry.step, state.stepBegan, time]);
      state.step = entry.step + 1;
      state.stepBegan = time;
      return;
    case "validation-start":
      state.doing = "validation";
      put.window.run(["validation", entry.step, time, null]);
      return;
    case "validation-end":
      put.window.run(["validation", entry.step, time - entry.seconds * 1000, time]);
      state.stepBegan = time;
      return;
    case "warning":
    case "health":
      put.note.run([time, entry.kind, state.step, cutText(entry.text)]);
      return;
    case "run-end": {
      const { reason, text, report } = entry;
      put.cutOff.run([time, place.end]);
      state.end = { reason, ...(text === undefined ? {} : { text }), ...(report ? { report: [...report] } : {}) };
      state.doing = null;
      return;
    }
  }
}

// Adds metrics.jsonl to a run's index.

/** All curves are read at once, with a value for each step. */
const maxNames = 5000;

/** @returns whether everything is indexed */
function indexMetrics(database: IndexDatabase, run: string, until: number): boolean {
  const putStep = database.prepare("INSERT OR REPLACE INTO steps (kind, step, epoch, time) VALUES (?, ?, ?, ?)");
  const putName = database.prepare("INSERT INTO names (text) VALUES (?)");
  const putPoint = database.prepare("INSERT OR REPLACE INTO points (kind, name, step, value) VALUES (?, ?, ?, ?)");
  let names: Map<string, number> | undefined;
  function knownNames(): Map<string, number> {
    names ??= new Map(
      (database.prepare("SELECT name, text FROM names").all([]) as { name: number; text: string }[]).map(
        ({ name, text }) => [text, name],
      ),
    );
    return names;
  }
  function nameOf(text: string): number {
    const found = knownNames().get(text) ?? Number(putName.run([text]).lastInsertRowid);
    knownNames().set(text, found);
    return found;
  }
  return followLines<ReadMetricsLine>(database, run, metricsFile, until, {
    forget() {
      database.exec("DELETE FROM points; DELETE FROM steps; DELETE FROM names;");
      names = undefined;
    },
    read(text) {
      const line = readMetricsLine(text);
      const added = Object.keys(line.metrics).filter((name) => !knownNames().has(name));
      if (added.length + knownNames().size > maxNames) throw new Error(`the run has more than ${maxNames} metrics`);
      return line;
    },
    add({ step, epoch, validation, time, metrics }) {
      const kind = validation ? "validation" : "train";
      const at = Date.parse(String(time));
      putStep.run([kind, step, epoch ?? null, Number.isNaN(at) ? null : at]);
      for (const [name, value] of Object.entries(metrics)) putPoint.run([kind, nameOf(name), step, stored(value)]);
    },
  });
}
