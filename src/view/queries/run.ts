/** A run: its state, steps and notes. */
import { existsSync, lstatSync } from "node:fs";
import { basename, join } from "node:path";
import { HoneError, messageOf } from "../../errors.ts";
import { isLocked } from "../../files/folder-lock.ts";
import { readable } from "../../system-errors.ts";
import { lastEnd } from "../../tracking/run-folder/journal.ts";
import { type JournalState, readJournalState } from "../index/index-journal.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { describeProblems, type FileProblem, readProblems } from "../index/problems.ts";
import type { RunIndex } from "../index/run-index.ts";
import { configHead } from "./config.ts";
import { oneCurve } from "./curves.ts";
import { fromStored, type JsonNumber, optional } from "./json.ts";
import type { Kind } from "./parameters.ts";

/** The most values of a small chart. */
const maxChartValues = 60;

export type RunState = "live" | "interrupted" | NonNullable<ReturnType<typeof lastEnd>>;

/**
 * `live`: a process has locked the run's folder. `interrupted`: its process ended without writing how the run ended.
 * Reads the lock first and then the journal, because a run writes its end before it unlocks its folder. The index may be older.
 */
export function runState(folder: string, { end }: Pick<JournalState, "end">): RunState {
  if (isLocked(folder)) return "live";
  return end?.reason ?? lastEndOf(folder) ?? "interrupted";
}

/** A journal that cannot be read is among the problems. */
function lastEndOf(folder: string): ReturnType<typeof lastEnd> {
  try {
    return lastEnd(folder);
  } catch (error) {
    if (readable(error) instanceof HoneError) return undefined;
    throw error;
  }
}

export type RunSummary = ReturnType<typeof runSummary>;
export const runSummary = (index: RunIndex) => summaryAndProblems(index).summary;

function summaryAndProblems({ folder, database, share }: RunIndex) {
  const journal = readJournalState(database);
  const { problem, ...config } = configHead(folder);
  const problems: FileProblem[] = [...(problem ? [problem] : []), ...readProblems(database)];
  const rewards = oneCurve(database, "reward/mean").map(({ value }) => fromStored(value));
  const { step } = database.prepare("SELECT max(step) AS step FROM steps WHERE kind = 'train'").get([]) as {
    step: number | null;
  };
  const { episodes } = database.prepare("SELECT count(*) AS episodes FROM trajectories WHERE part = 0").get([]) as {
    episodes: number;
  };
  const times = database.prepare("SELECT min(time) AS first, max(time) AS last FROM steps").get([]) as {
    first: number | null;
    last: number | null;
  };
  const started = journal.started ?? times.first ?? existing(join(folder, "config.yaml"));
  const summary = {
    id: basename(folder),
    state: runState(folder, journal),
    /** The number of finished steps, and of planned steps if known. */
    step: step ?? 0,
    totalSteps: journal.totalSteps,
    started,
    /** The time of the last record. */
    updated: Math.max(journal.time, times.last ?? 0) || started,
    ...config,
    /** The indexed ones. */
    episodes,
    /** `reward/mean` of the last step, and of each step for a small chart. */
    reward: rewards.at(-1) ?? null,
    rewards: thinned(rewards),
    /** Metrics of the last validation, e.g. `val/reward`. */
    validation: lastValidation(database),
    ...optional({
      /** The indexed share of the episode files, from 0 to 1; absent if all are. */
      indexing: share < 1 ? share : undefined,
      /** Why the folder cannot be read completely: the first of the problems, as a sentence. */
      problem: describeProblems(problems),
    }),
  };
  return { summary, problems };
}

/** The row of a run that cannot be opened. */
export const brokenSummary = (id: string, error: unknown): RunSummary => ({
  ...{ id, state: "interrupted", step: 0, totalSteps: null, started: null, updated: null, model: null, backend: null },
  ...{ project: null, experiment: null, episodes: 0, reward: null, rewards: [], validation: {} },
  problem: messageOf(error),
});

export type RunDetail = ReturnType<typeof runDetail>;
export type Note = RunDetail["notes"][number];

export function runDetail(index: RunIndex) {
  const { folder, database } = index;
  const journal = readJournalState(database);
  const roles = database.prepare("SELECT DISTINCT role FROM trajectories WHERE role IS NOT NULL ORDER BY role").all([]);
  const { summary, problems } = summaryAndProblems(index);
  return {
    ...summary,
    /** What of the folder cannot be read, at most 100 files. */
    problems,
    path: folder,
    /** Lines about the model and the size of a step. */
    text: journal.text,
    steps: stepSummaries(database),
    /** Messages of the health rules, and warnings. */
    notes: database.prepare("SELECT kind, step, time, text FROM notes ORDER BY time").all([]) as {
      kind: "health" | "warning";
      step: number | null;
      time: number;
      text: string;
    }[],
    /** What the run is doing now, if it is live. */
    doing: isLocked(folder) ? journal.doing : null,
    roles: (roles as { role: string }[]).map(({ role }) => role),
    /** The last sequence number of the journal. Pass it to `/api/events` to get all later events. */
    cursor: journal.seq,
    /** Whether tokens have texts. */
    hasTokenizer: existsSync(join(folder, "tokenizer", "tokenizer.json")),
    end: journal.end === undefined ? null : { ...journal.end, report: journal.end.report ?? [] },
  };
}

/** A finished step. `curves` returns its metrics. */
export interface StepSummary {
  step: number;
  epoch: number | null;
  /** When it ended. */
  time: number | null;
  seconds: number | null;
  /** Indexed episodes, by kind. */
  train: number;
  validation: number;
  /** `rollout`, `update`, `publish`, `buffer_wait`, ...: seconds of each phase. */
  phases: Record<string, JsonNumber>;
}

function stepSummaries(database: IndexDatabase): StepSummary[] {
  const steps = new Map<number, StepSummary>();
  const newStep = { epoch: null, time: null, seconds: null, train: 0, validation: 0 };
  const stepOf = (step: number) => {
    const found = steps.get(step) ?? { step, ...newStep, phases: {} };
    steps.set(step, found);
    return found;
  };
  const done = database.prepare("SELECT step, epoch, time FROM steps WHERE kind = 'train'").all([]) as {
    step: number;
    epoch: number | null;
    time: number | null;
  }[];
  for (const { step, epoch, time } of done) Object.assign(stepOf(step), { epoch, time });
  const counts = database
    .prepare("SELECT step, kind, count(*) AS count FROM trajectories WHERE part = 0 GROUP BY step, kind")
    .all([]) as { step: number; kind: Kind; count: number }[];
  for (const { step, kind, count } of counts) stepOf(step)[kind] = count;
  const times = database
    .prepare("SELECT step, text, value FROM points JOIN names USING (name) WHERE kind = 'train' AND text GLOB 'time/*'")
    .all([]) as { step: number; text: string; value: number | string }[];
  for (const { step, text, value } of times) {
    const name = text.slice("time/".length);
    const summary = stepOf(step);
    if (name === "step") summary.seconds = typeof value === "number" ? value : null;
    else summary.phases[name] = value as JsonNumber;
  }
  return [...steps.values()].sort((left, right) => left.step - right.step);
}

function lastValidation(database: IndexDatabase): Record<string, JsonNumber> {
  const rows = database
    .prepare(
      `SELECT text, value FROM points JOIN names USING (name)
       WHERE kind = 'validation' AND step = (SELECT max(step) FROM steps WHERE kind = 'validation') AND text GLOB 'val/*'`,
    )
    .all([]) as { text: string; value: number | string }[];
  return Object.fromEntries(rows.map(({ text, value }) => [text, value as JsonNumber]));
}

/** Evenly spaced values, with the last one. */
function thinned<Value>(values: readonly Value[]): Value[] {
  if (values.length <= maxChartValues) return [...values];
  return Array.from({ length: maxChartValues }, (_, index) => {
    return values[Math.round((index * (values.length - 1)) / (maxChartValues - 1))]!;
  });
}

function existing(file: string): number | null {
  return lstatSync(file, { throwIfNoEntry: false })?.mtimeMs ?? null;
}
