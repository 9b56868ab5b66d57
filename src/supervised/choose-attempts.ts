/** Chooses among the attempts at each task: rejection sampling, and pairs of a better and a worse one. */
import { isDeepStrictEqual } from "node:util";
import type { conversationRows } from "../gateway/traces/conversation-rows.ts";
import type { AtifTrajectory } from "../harbor/atif.ts";
import { deriveSeed, uniforms } from "../random.ts";
import { taskFilter } from "./task-filter.ts";

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

export type SftRow = ReturnType<typeof conversationRows>[number];

/** One episode, or one session of the trace store. */
export interface Attempt {
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

export const rows: Form = (candidates, choice) => choose(candidates, choice).flatMap((one) => one.rows);

/** ATIF documents. */
export const documents: Form = (candidates, choice) =>
  choose(candidates, choice).flatMap(({ document = [] }) => document);

/** The best against the worst attempt, if their rewards differ and they begin alike. */
export const pairs: Form = (candidates, { maxPerTask = 1 }) => {
  const sorted = [...candidates].sort((a, b) => b.reward - a.reward || a.tokens - b.tokens);
  const count = Math.min(maxPerTask, Math.floor(sorted.length / 2));
  return Array.from({ length: count }, (_, index) => pairOf(sorted[index]!, sorted[sorted.length - 1 - index]!)).flat();
};

/** @throws UserError if the filter is not valid */
export function chooseAttempts(attempts: Iterable<Attempt>, choice: Choice, form: Form): Chosen {
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
