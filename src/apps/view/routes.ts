/**
 * The JSON API of `hone view`: a query on the viewed folder or on one run for each `GET` route. The page's types are those
 * of the queries.
 *
 * `:run` is the name of a run's folder, `:episode` is the `key` of an episode's row; both are safe in a path. Errors are
 * `ApiError` with status 400 (a mistake in the query, or a file of the run that cannot be read), 401 (no token), 404 or 500.
 * A run of which something cannot be read answers with the rest, and names it in `problem`. It is indexed while it is viewed:
 * answers contain what is indexed so far, and `indexing` of a run's summary is the indexed share.
 *
 * `app.ts` adds the files of images (`/api/runs/:run/media/:hash`), the events (`/api/events`) and `POST /api/view`.
 */
import { readable } from "../../base/errors.ts";
import { filterFields } from "../../tracking/filter.ts";
import type { IndexDatabase } from "./database.ts";
import type { OpenedRun, Viewer } from "./live.ts";
import { type AnatomyQuery, anatomy } from "./queries/anatomy.ts";
import {
  type CurvesQuery,
  curves,
  metricColumns,
  type RewardsQuery,
  rewardHistogram,
  tokenScales,
} from "./queries/curves.ts";
import {
  episode,
  type GroupQuery,
  type GroupsQuery,
  group,
  groupList,
  type TaskQuery,
  taskHistory,
} from "./queries/episode.ts";
import { type EpisodesQuery, episodeList, type SearchQuery, search } from "./queries/episodes.ts";
import { type FailuresQuery, failures, type JournalQuery, journalPage } from "./queries/failures.ts";
import { brokenSummary, runConfig, runDetail, runSummary } from "./queries/run.ts";

/** When a run is opened for the first time, it is indexed for this long before the first answer. */
export const firstAnswerMilliseconds = 1500;

export const folderRoutes = {
  "/api/runs": (viewer: Viewer) => runList(viewer),
  "/api/columns": (viewer: Viewer, query: ColumnsQuery) => columns(viewer, query),
  "/api/fields": () => filterFields,
};

export const runRoutes = {
  "/api/runs/:run": ({ index }: OpenedRun) => runDetail(index),
  "/api/runs/:run/config": ({ index }: OpenedRun) => runConfig(index.folder),
  "/api/runs/:run/curves": ({ index }: OpenedRun, query: CurvesQuery) => curves(index.database, query),
  "/api/runs/:run/anatomy": ({ index }: OpenedRun, query: AnatomyQuery) => anatomy(index.database, index.folder, query),
  "/api/runs/:run/episodes": ({ index }: OpenedRun, query: EpisodesQuery) => episodeList(index.database, query),
  "/api/runs/:run/episodes/:episode": ({ index, pieces }: OpenedRun, query: { episode: string }) =>
    episode(index.database, index.folder, query.episode, pieces()),
  "/api/runs/:run/groups": ({ index }: OpenedRun, query: GroupsQuery) => groupList(index.database, query),
  "/api/runs/:run/group": ({ index }: OpenedRun, query: GroupQuery) => group(index.database, index.folder, query),
  "/api/runs/:run/task": ({ index }: OpenedRun, query: TaskQuery) => taskHistory(index.database, index.folder, query),
  "/api/runs/:run/failures": ({ index }: OpenedRun, query: FailuresQuery) => failures(index.database, query),
  "/api/runs/:run/search": ({ index }: OpenedRun, query: SearchQuery) => search(index.database, query),
  "/api/runs/:run/rewards": ({ index }: OpenedRun, query: RewardsQuery) => rewardHistogram(index.database, query),
  "/api/runs/:run/scales": ({ index }: OpenedRun) => tokenScales(index.database, index.folder),
  "/api/runs/:run/journal": ({ index }: OpenedRun, query: JournalQuery) =>
    journalPage(index.database, index.folder, query),
};

type Routes = typeof folderRoutes & typeof runRoutes;
export type Route = keyof Routes;
type RunRoute = keyof typeof runRoutes;

/** The parameters of a route, in its path and its query. */
export type Query<R extends Route> = (Parameters<Routes[R]> extends [unknown, infer Given extends object]
  ? Given
  : object) &
  (R extends RunRoute ? { run: string } : object);
export type Answer<R extends Route> = Awaited<ReturnType<Routes[R]>>;

/** Parameters are text from outside: each query checks what it reads. */
export type TextParameters = Readonly<Record<string, string>>;

export const runAnswer = <R extends RunRoute>(route: R, run: OpenedRun, given: TextParameters): Answer<R> =>
  (runRoutes[route] as (run: OpenedRun, given: never) => unknown)(run, given as never) as Answer<R>;

async function runList(viewer: Viewer) {
  const names = viewer.names();
  const runs = names.map((name) => summaryOf(viewer, name, firstAnswerMilliseconds / names.length));
  return {
    /** For display. */
    folder: viewer.folder,
    /** Whether the viewed folder is a single run, not a folder of runs. */
    single: viewer.single,
    /** The newest first. */
    runs: await Promise.all(runs),
  };
}

/** One run that cannot be read does not keep the others from the list. */
async function summaryOf(viewer: Viewer, name: string, milliseconds: number) {
  try {
    const { index } = viewer.open(name);
    await index.refresh(milliseconds);
    return runSummary(index);
  } catch (error) {
    return brokenSummary(name, readable(error));
  }
}

interface ColumnsQuery {
  /** Joined by commas. */
  names?: string;
}

function columns(viewer: Viewer, { names = "" }: ColumnsQuery) {
  const opened = new Map<string, IndexDatabase>();
  for (const name of viewer.names()) {
    try {
      opened.set(name, viewer.open(name).index.database);
    } catch {
      // The row of the run in the list shows why it cannot be read.
    }
  }
  return metricColumns(opened, names.split(",").filter(Boolean));
}
