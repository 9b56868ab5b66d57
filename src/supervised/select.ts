/** Rows and pairs to learn from, chosen from the episodes and traces of earlier runs. */
import { existsSync, readdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { UserError } from "../base/errors.ts";
import { withInside } from "../base/files.ts";
import { nearest } from "../base/text.ts";
import { deriveSeed, mean, ownValue, uniforms } from "../base/values.ts";
import { type ChatMessage, toMessage } from "../chat/messages.ts";
import { conversationRows, conversationsOf } from "../gateway/traces/read.ts";
import type { TraceFilter, TraceStore } from "../gateway/types.ts";
import { mediaFolder } from "../images/images.ts";
import { type AtifTrajectory, toAtif } from "../integrations/harbor/atif.ts";
import { readEpisode, type StoredEpisode, type StoredTrajectory } from "../tracking/episodes.ts";
import { type Filter, parseFilter, type Token } from "../tracking/filter.ts";
import { completeLines, maxEpisodeBytes } from "../tracking/json-lines.ts";

// Conditions on a task's episodes: `0 < avg < 1 and n >= 4`, in the syntax of the viewer's filters.

/** The known rewards of a task's episodes, and which of them solved it. */
export interface TaskOutcomes {
  rewards: readonly number[];
  solved: readonly boolean[];
}

/** rLLM's names, so that its filters work. */
const fields: Readonly<Record<string, (task: TaskOutcomes) => number>> = {
  avg: ({ rewards }) => mean(rewards),
  best: ({ rewards }) => Math.max(...rewards),
  worst: ({ rewards }) => Math.min(...rewards),
  n: ({ rewards }) => rewards.length,
  n_correct: ({ solved }) => solved.filter(Boolean).length,
  solved: ({ solved }) => Number(solved.includes(true)),
};

/** `pass@4` is the probability that one of four of the task's episodes solved it; NaN with fewer. */
function passAt(count: number, { solved }: TaskOutcomes): number {
  const failed = solved.filter((one) => !one).length;
  if (solved.length < count) return Number.NaN;
  let none = 1;
  for (let index = 0; index < count; index++) none *= Math.max(0, failed - index) / (solved.length - index);
  return 1 - none;
}

const comparisons: Readonly<Record<string, (left: number, right: number) => boolean>> = {
  "=": (left, right) => left === right,
  "!=": (left, right) => left !== right,
  "<": (left, right) => left < right,
  "<=": (left, right) => left <= right,
  ">": (left, right) => left > right,
  ">=": (left, right) => left >= right,
};

const flipped: Readonly<Record<string, string>> = { "<": ">", "<=": ">=", ">": "<", ">=": "<=" };
const numberFirst = /(-?\d+(?:\.\d+)?)\s*(<=?|>=?)\s*([a-z_]+(?:@\d+)?)(?:\s*(<=?|>=?)\s*(-?\d+(?:\.\d+)?))?/g;

/** @throws UserError for a filter that is not valid */
export function taskFilter(text: string): (task: TaskOutcomes) => boolean {
  if (text.trim() === "") return () => true;
  // The parser takes the field first.
  const fieldFirst = text.replaceAll(numberFirst, (_, low, first, field, second, high) =>
    second === undefined
      ? `${field}${flipped[first]}${low}`
      : `(${field}${flipped[first]}${low} and ${field}${second}${high})`,
  );
  return compile(parseFilter(fieldFirst));
}

function compile(filter: Filter): (task: TaskOutcomes) => boolean {
  if (filter.kind === "not") {
    const part = compile(filter.part);
    return (task) => !part(task);
  }
  if (filter.kind !== "comparison") {
    const parts = filter.parts.map(compile);
    return filter.kind === "and"
      ? (task) => parts.every((part) => part(task))
      : (task) => parts.some((part) => part(task));
  }
  const { operator } = filter;
  const value = readValue(filter.value);
  const field = fieldOf(filter.field);
  const compare = comparisons[operator];
  if (compare === undefined)
    throw new UserError(`${filter.field.text} is a number, which "${operator}" does not compare`);
  return (task) => compare(field(task), value);
}

function fieldOf({ text }: Token): (task: TaskOutcomes) => number {
  const known = ownValue(fields, text);
  if (known !== undefined) return known;
  const count = Number(/^pass@(\d+)$/.exec(text)?.[1]);
  if (count >= 1) return (task) => passAt(count, task);
  const names = [...Object.keys(fields), "pass@1"];
  const [near] = nearest(text, names, 1);
  throw new UserError(`"${text}" is not a field of a task`, {
    hint: near === undefined ? `the fields are ${names.join(", ")}` : `did you mean ${near}?`,
  });
}

function readValue({ text }: Token): number {
  if (text === "true" || text === "false") return Number(text === "true");
  const value = Number(text);
  if (text !== "" && Number.isFinite(value)) return value;
  throw new UserError(`"${text}" is not a number`);
}

// Chooses among the attempts at each task: rejection sampling, and pairs of a better and a worse one.

export const selections = ["best", "correct", "shortest", "all"] as const;

export interface Choice {
  /** A condition on the task, e.g. `0 < avg < 1`. Default: none. */
  filter?: string;
  /**
   * `best`: the attempts of the highest reward; `correct`: those that solved the task; `shortest`: those, the fewest tokens
   * first; `all`: in their order.
   */
  select: (typeof selections)[number];
  /** Default: 1 for best and shortest, else all. */
  maxPerTask?: number;
  /** Leaves out equal conversations of a task. */
  dedup?: boolean;
  /** Share of the tasks whose rows are for validation. Default 0. */
  valFraction?: number;
}

type SftRow = ReturnType<typeof conversationRows>[number];

/** One episode, or one session of the trace store. */
interface Attempt {
  task: string;
  /** Null: unknown. */
  reward: number | null;
  /** Null: unknown; then a reward of 1 or more is correct. */
  correct: boolean | null;
  /** Sampled tokens. */
  tokens: number;
  /** Its whole conversations. */
  rows: SftRow[];
  document?: AtifTrajectory | undefined;
}

interface Candidate extends Pick<Attempt, "tokens" | "rows" | "document"> {
  reward: number;
  solved: boolean;
}

export interface Chosen {
  train: unknown[];
  validation: unknown[];
  counts: {
    attempts: number;
    unknown: number;
    tasks: number;
    filtered: number;
    /** Equal conversations. */
    repeated: number;
    /** Conversations of raw prompts, or of models that are not trained. */
    withoutMessages: number;
  };
}

/** What a task's candidates become. */
export type Form = (candidates: readonly Candidate[], choice: Choice) => unknown[];

const rows: Form = (candidates, choice) => choose(candidates, choice).flatMap((one) => one.rows);

/** ATIF documents. */
const documents: Form = (candidates, choice) => choose(candidates, choice).flatMap(({ document = [] }) => document);

/** The best against the worst attempt, if their rewards differ and they begin alike. */
const pairs: Form = (candidates, { maxPerTask = 1 }) => {
  const sorted = [...candidates].sort((a, b) => b.reward - a.reward || a.tokens - b.tokens);
  const count = Math.min(maxPerTask, Math.floor(sorted.length / 2));
  return Array.from({ length: count }, (_, index) => pairOf(sorted[index]!, sorted[sorted.length - 1 - index]!)).flat();
};

/** @throws UserError if the filter is not valid */
function chooseAttempts(attempts: Iterable<Attempt>, choice: Choice, form: Form): Chosen {
  const { filter = "", dedup = false, valFraction = 0 } = choice;
  const passes = taskFilter(filter);
  const counts = { attempts: 0, unknown: 0, tasks: 0, filtered: 0, repeated: 0, withoutMessages: 0 };
  const tasks = new Map<string, Candidate[]>();
  for (const { task, reward, correct, tokens, rows: given, document } of attempts) {
    counts.attempts++;
    if (reward === null || !Number.isFinite(reward)) {
      counts.unknown++;
      continue;
    }
    if (given.length === 0) counts.withoutMessages++;
    const own = tasks.get(task) ?? [];
    tasks.set(task, own);
    const isNew = !dedup || own.every((other) => !isDeepStrictEqual(other.rows, given));
    if (!isNew) counts.repeated++;
    own.push({ reward, solved: correct ?? reward >= 1, tokens, rows: isNew ? given : [], document });
  }
  counts.tasks = tasks.size;
  const chosen: Chosen = { train: [], validation: [], counts };
  for (const [task, candidates] of tasks) {
    const outcomes = {
      rewards: candidates.map((one) => one.reward),
      solved: candidates.map((one) => one.solved),
    };
    if (!passes(outcomes)) {
      counts.filtered++;
      continue;
    }
    // The same tasks in every export.
    const isHeld = uniforms(deriveSeed(0, "validation", task))() < valFraction;
    const usable = candidates.filter((one) => one.rows.length > 0);
    chosen[isHeld ? "validation" : "train"].push(...form(usable, choice));
  }
  return chosen;
}

function choose(candidates: readonly Candidate[], { select, maxPerTask }: Choice): Candidate[] {
  const solved = candidates.filter((one) => one.solved);
  const best = Math.max(...candidates.map(({ reward }) => reward));
  const chosen = {
    all: candidates,
    correct: solved,
    shortest: [...solved].sort((a, b) => a.tokens - b.tokens),
    best: candidates.filter(({ reward }) => reward === best).sort((a, b) => a.tokens - b.tokens),
  }[select];
  const most = maxPerTask ?? (select === "best" || select === "shortest" ? 1 : Number.POSITIVE_INFINITY);
  return chosen.slice(0, most);
}

function pairOf(better: Candidate, worse: Candidate): unknown[] {
  const [left, right] = [better.rows[0], worse.rows[0]];
  if (better.reward <= worse.reward || !left || !right) return [];
  let same = 0;
  while (same < left.messages.length && isDeepStrictEqual(left.messages[same], right.messages[same])) same++;
  const [chosen, rejected] = [left.messages.slice(same), right.messages.slice(same)];
  if (same === 0 || chosen.length === 0 || rejected.length === 0) return [];
  return [{ prompt: left.messages.slice(0, same), chosen, rejected, tools: left.tools }];
}

// Rows for `hone sft`, pairs for `hone dpo` and ATIF documents from the episodes of a run or an evaluation.

export const episodeKinds = ["train", "validation", "all"] as const;

export interface Selection extends Choice {
  /** Only trajectories of this role. Default: all roles. */
  role?: string;
  /** Default: episodes of training; of an evaluation, which has none, its own. */
  kind?: (typeof episodeKinds)[number];
}

export interface Selected extends Chosen {
  /** Lines that cannot be read. */
  damaged: number;
}

/** @throws UserError if the folder has no episodes, or the filter is not valid */
export const selectRows = (folder: string, selection: Selection): Selected => collect(folder, selection, rows);

/** One ATIF document for each chosen episode. */
export const selectDocuments = (folder: string, selection: Selection): Selected =>
  collect(folder, selection, documents, (episode) => toAtif(episode));

/** The best against the worst episode of each task, if their rewards differ and they begin alike. */
export const selectPairs = (folder: string, selection: Selection): Selected => collect(folder, selection, pairs);

function collect(
  folder: string,
  { role, kind, ...choice }: Selection,
  form: Form,
  documentOf?: (episode: StoredEpisode) => AtifTrajectory | undefined,
): Selected {
  if (!existsSync(folder)) throw new UserError(`${folder}: no such folder`);
  const training = kind === undefined ? episodeFiles(folder, "train") : [];
  const files = training.length > 0 ? training : episodeFiles(folder, kind ?? "validation");
  if (files.length === 0) {
    throw new UserError(`${folder} has no ${kind === undefined || kind === "all" ? "" : `${kind} `}episodes`, {
      hint: "name the folder of a run, or of hone eval",
    });
  }
  let damaged = 0;
  const attemptOf = (episode: StoredEpisode): Attempt => {
    const trajectories = episode.trajectories.filter(({ name }) => role === undefined || name === role);
    return {
      task: episode.taskId,
      reward: episode.trajectories[0]?.reward ?? null,
      correct: episode.correct ?? null,
      tokens: trajectories.reduce((sum, { steps }) => steps.reduce((all, one) => all + one.tokens.length, sum), 0),
      rows: trajectories.flatMap((trajectory) => rowsOfTrajectory(trajectory, folder)),
      document: documentOf?.({ ...episode, trajectories }),
    };
  };
  function* attempts() {
    for (const episode of episodesOf(folder, files, () => damaged++)) yield attemptOf(episode);
  }
  const chosen = chooseAttempts(attempts(), choice, form);
  return { ...chosen, damaged };
}

const fileName = /^step-\d+(-validation)?\.jsonl$/;

/** Of a run, or of each model of an evaluation. @returns paths within the folder */
function episodeFiles(folder: string, kind: (typeof episodeKinds)[number]): string[] {
  const matches = (name: string) => {
    const [found, validation] = fileName.exec(name) ?? [];
    return found !== undefined && (kind === "all" || (kind === "validation") === (validation !== undefined));
  };
  const inside = (at: string) =>
    namesIn(join(folder, at, "episodes"))
      .filter(matches)
      .map((name) => join(at, "episodes", name));
  const own = inside("");
  return own.length > 0 ? own : namesIn(folder).flatMap(inside);
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder).sort();
  } catch {
    return [];
  }
}

function* episodesOf(folder: string, files: readonly string[], onDamage: () => void): Generator<StoredEpisode> {
  for (const file of files) {
    const found = withInside(folder, file, (opened) => {
      const episodes: StoredEpisode[] = [];
      for (const { text } of completeLines(opened, { max: maxEpisodeBytes })) {
        try {
          if (text === undefined) throw new Error("too long");
          episodes.push(readEpisode(text));
        } catch {
          onDamage();
        }
      }
      return episodes;
    });
    yield* found ?? [];
  }
}

/** Each whole conversation. Calls of models that are not trained are left out. */
function rowsOfTrajectory({ steps }: StoredTrajectory, folder: string): SftRow[] {
  const own = steps.filter(({ policyVersion, messages }) => policyVersion >= 0 && messages.length > 0);
  return conversationRows(
    own.map(({ messages, tools = null, reply, text }) => ({
      messages: [...messages, reply ? toMessage(reply) : { role: "assistant", content: text }],
      tools,
    })),
    join(resolve(folder), mediaFolder),
  );
}

// Rows for `hone sft` and pairs for `hone dpo` from the trace store: agents behind the gateway, and imported spans.

/**
 * Sessions of the same task are compared. A session without a task, such as an imported trace, is an attempt at its first
 * prompt.
 *
 * @throws UserError if the filter is not valid
 */
export function selectTraces(store: TraceStore, filter: TraceFilter, choice: Choice, as: "sft" | "pairs"): Chosen {
  function* attempts(): Generator<Attempt> {
    for (const session of store.sessions(filter)) {
      const answered = store.traces(session).filter(({ status }) => status === "ok");
      const conversations = answered.flatMap(conversationsOf);
      const { taskId, reward, correct, sampledTokens: tokens } = session;
      const prompt = (answered[0]?.messages ?? null) as ChatMessage[] | null;
      const task = taskId ?? JSON.stringify(prompt ?? session.session);
      yield { task, reward, correct, tokens, rows: conversationRows(conversations) };
    }
  }
  return chooseAttempts(attempts(), choice, as === "sft" ? rows : pairs);
}
