/** The `GET` routes of the JSON API: each is a query on one run. */
import type { Routes } from "../api.ts";
import { anatomy } from "../queries/anatomy.ts";
import { runConfig } from "../queries/config.ts";
import { curves } from "../queries/curves.ts";
import { episode } from "../queries/episode.ts";
import { episodeList } from "../queries/episode-list.ts";
import { failures } from "../queries/failures.ts";
import { group, groupList, taskHistory } from "../queries/groups.ts";
import { journalPage } from "../queries/journal-page.ts";
import { rewardHistogram } from "../queries/rewards.ts";
import { runDetail } from "../queries/run.ts";
import { tokenScales } from "../queries/scales.ts";
import { search } from "../queries/search.ts";
import type { OpenedRun } from "./viewer.ts";

/** Parameters of the query, and of the path. */
export type Parameters = Readonly<Record<string, string>>;

type RunRoute = Extract<keyof Routes, `/api/runs/:run${string}`>;

/** The parameters are text from outside: each query checks what it reads. */
export const runRoutes: {
  [Path in RunRoute]: (run: OpenedRun, given: Parameters) => Routes[Path]["answer"];
} = {
  "/api/runs/:run": ({ index }) => runDetail(index),
  "/api/runs/:run/config": ({ index }) => runConfig(index.folder),
  "/api/runs/:run/curves": ({ index }, given) => curves(index.database, given),
  "/api/runs/:run/anatomy": ({ index }, given) => anatomy(index.database, index.folder, given),
  "/api/runs/:run/episodes": ({ index }, given) => episodeList(index.database, given),
  "/api/runs/:run/episodes/:episode": ({ index, pieces }, given) =>
    episode(index.database, index.folder, given.episode ?? "", pieces()),
  "/api/runs/:run/groups": ({ index }, given) => groupList(index.database, given),
  "/api/runs/:run/group": ({ index }, given) => group(index.database, index.folder, given),
  "/api/runs/:run/task": ({ index }, given) => taskHistory(index.database, index.folder, given),
  "/api/runs/:run/failures": ({ index }, given) => failures(index.database, given),
  "/api/runs/:run/search": ({ index }, given) => search(index.database, given),
  "/api/runs/:run/rewards": ({ index }, given) => rewardHistogram(index.database, given),
  "/api/runs/:run/scales": ({ index }) => tokenScales(index.database, index.folder),
  "/api/runs/:run/journal": ({ index }, given) => journalPage(index.database, index.folder, given),
};
