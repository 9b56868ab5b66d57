/** A run for the page: its state, steps, notes, and its configuration with the origin of each value. */
import { existsSync, lstatSync } from "node:fs";
import { basename, join } from "node:path";
import { isMap, isScalar, type Node, parseDocument } from "yaml";
import { HoneError, messageOf, readable, UserError } from "../../../base/errors.ts";
import { readInside } from "../../../base/files.ts";
import { isLocked } from "../../../base/folder-lock.ts";
import { maskUrls, maskUrlsIn } from "../../../base/text.ts";
import { ownValue } from "../../../base/values.ts";
import { configKeys } from "../../../config/schema.ts";
import type { OriginKind } from "../../../config/tree.ts";
import { lastEnd } from "../../../tracking/journal.ts";
import { isShallow } from "../../../tracking/json-lines.ts";
import { type ChosenOrigins, readOrigins } from "../../../tracking/run-folder.ts";
import type { IndexDatabase } from "../database.ts";
import { describeProblems, type FileProblem, readProblems, unreadable } from "../index-episodes.ts";
import { type JournalState, type RunIndex, readJournalState } from "../run-index.ts";
import { oneCurve } from "./curves.ts";
import { fromStored, type JsonNumber, type Kind, optional } from "./parameters.ts";

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

// The configuration of a run, with the origin of each value.

const configFile = "config.yaml";
/** A run's configuration has 15 kB, and parsing YAML is slow. */
const maxBytes = 250_000;
/** The most characters of a value in the list of runs. */
const maxText = 1000;

export type RunConfig = ReturnType<typeof runConfig>;

/**
 * The entries are in the order of config.yaml, which does not contain secrets. As a further protection, keys for secrets
 * are masked here.
 * @throws UserError if the file cannot be read
 */
export function runConfig(folder: string) {
  const text = readInside(folder, configFile, maxBytes)?.toString("utf8");
  const entries: ConfigEntry[] = [];
  if (text === undefined) return { entries };
  const origins = readOrigins(folder);
  try {
    // The time to find keys that occur twice is quadratic.
    const { contents } = parseDocument(text, { logLevel: "silent", uniqueKeys: false });
    collect(contents as Node | null, "", origins, entries);
    if (!isShallow(entries)) throw new Error("it is nested too deeply");
  } catch (cause) {
    // The parser recurses, so nesting thousands of levels deep overflows the stack.
    throw new UserError(`${configFile} cannot be read: ${(cause as Error).message}`, { cause });
  }
  return { entries };
}

/** What a list shows of the configuration of each run folder, until its file changes: a list is read often. */
const heads = new Map<string, { mark: string; head: ReturnType<typeof readHead> }>();

function configHead(folder: string) {
  const stat = lstatSync(join(folder, configFile), { throwIfNoEntry: false });
  const mark = `${stat?.ino} ${stat?.size} ${stat?.ctimeMs}`;
  const known = heads.get(folder);
  if (known?.mark === mark) return known.head;
  const head = readHead(folder);
  heads.set(folder, { mark, head });
  return head;
}

function readHead(folder: string) {
  let config: RunConfig = { entries: [] };
  let problem: FileProblem | undefined;
  try {
    config = runConfig(folder);
  } catch (error) {
    problem = unreadable(configFile, error);
  }
  return {
    model: configText(config, "model.name"),
    backend: configText(config, "rllm.backend"),
    project: configText(config, "rllm.trainer.project_name"),
    experiment: configText(config, "rllm.trainer.experiment_name"),
    problem,
  };
}

function collect(node: Node | null, key: string, origins: ChosenOrigins | undefined, entries: ConfigEntry[]): void {
  if (isMap(node) && node.items.length > 0) {
    for (const { key: name, value } of node.items) {
      const text = String(isScalar(name) ? name.value : name);
      collect(value as Node | null, key === "" ? text : `${key}.${text}`, origins, entries);
    }
    return;
  }
  entries.push(toEntry(node, key, origins));
}

export type ConfigEntry = ReturnType<typeof toEntry>;

function toEntry(node: Node | null, key: string, origins: ChosenOrigins | undefined) {
  const described = configKeys.get(key);
  const value: unknown = node === null ? null : node.toJSON();
  const text = node?.comment?.trim();
  return {
    /** E.g. `training.learning_rate`. */
    key,
    value: described?.about.secret === true && !isReference(value) ? "***" : maskUrlsIn(value),
    ...optional({
      /** Where it was set, e.g. `train.yaml:3:5`; absent if not recorded. */
      origin: text ? { kind: kindOf(key, text, origins), text: maskUrls(text) } : undefined,
      /** The key's description in the reference. */
      about: described?.description,
    }),
  };
}

/** Earlier versions recorded only the text of an origin, which begins with "default" for a default. */
function kindOf(key: string, text: string, origins: ChosenOrigins | undefined): OriginKind | "unknown" {
  if (origins !== undefined) return ownValue(origins, key) ?? "default";
  return /^(?:(?:synced|forwarded) from \S+ \()?default\b/.test(text) ? "default" : "unknown";
}

/** A reference such as an environment variable is shown, because the file does not contain its value. */
const isReference = (value: unknown) => value === null || (typeof value === "string" && /^\$\{[^}]*\}$/.test(value));

/** Null if it is not set. */
function configText({ entries }: RunConfig, key: string): string | null {
  const value = entries.find((entry) => entry.key === key)?.value;
  return value === undefined || value === null ? null : String(value).slice(0, maxText);
}
