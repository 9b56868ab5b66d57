/** The index of one run: follows the run folder, in slices, so that a server stays responsive. */
import { existsSync } from "node:fs";
import { setImmediate as nextTurn } from "node:timers/promises";
import { UserError } from "../../errors.ts";
import { type EpisodeIndexer, indexEpisodes } from "./index-episodes.ts";
import { indexJournal } from "./index-journal.ts";
import { indexMetrics } from "./index-metrics.ts";
import { databaseFile, type IndexDatabase, openDatabase, removeDatabase } from "./open-database.ts";

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
