/** Rows for `hone sft`, pairs for `hone dpo` and ATIF documents from the episodes of a run or an evaluation. */
import { existsSync, readdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { toMessage } from "../chat/messages.ts";
import { UserError } from "../errors.ts";
import { withInside } from "../files/regular-file.ts";
import { conversationRows } from "../gateway/traces/conversation-rows.ts";
import { type AtifTrajectory, toAtif } from "../harbor/atif.ts";
import { mediaFolder } from "../images/media-store.ts";
import { deriveSeed, uniforms } from "../random.ts";
import { completeLines, maxEpisodeBytes } from "../tracking/run-folder/lines.ts";
import { readEpisode, type StoredEpisode, type StoredTrajectory } from "../tracking/run-folder/read-episode.ts";
import { type TaskOutcomes, taskFilter } from "./task-filter.ts";

export const selections = ["best", "correct", "shortest", "all"] as const;
export const episodeKinds = ["train", "validation", "all"] as const;

export interface Selection {
  /** A condition on the task, e.g. `0 < avg < 1`. Default: none. */
  filter?: string;
  /**
   * `best`: the episodes of the highest reward; `correct`: those that solved the task; `shortest`: those, the fewest tokens
   * first; `all`: in their order.
   */
  select: (typeof selections)[number];
  /** Default: 1 for best and shortest, else all. */
  maxPerTask?: number;
  /** Leaves out equal conversations of a task. */
  dedup?: boolean;
  /** Only trajectories of this role. Default: all roles. */
  role?: string;
  kind: (typeof episodeKinds)[number];
  /** Share of the tasks whose rows are for validation. Default 0. */
  valFraction?: number;
}

export interface Selected {
  train: unknown[];
  validation: unknown[];
  counts: {
    episodes: number;
    unknown: number;
    tasks: number;
    filtered: number;
    /** Lines that cannot be read. */
    damaged: number;
    /** Equal conversations. */
    repeated: number;
    /** Conversations of raw prompts, or of models that are not trained. */
    withoutMessages: number;
  };
}

/** What is kept of an episode. */
interface Candidate {
  reward: number;
  solved: boolean;
  tokens: number;
  rows: SftRow[];
  document?: AtifTrajectory | undefined;
}

type SftRow = ReturnType<typeof conversationRows>[number];

/** @throws UserError if the folder has no episodes, or the filter is not valid */
export function selectRows(folder: string, selection: Selection): Selected {
  return collect(folder, selection, (candidates) => {
    const chosen = choose(candidates, selection);
    return chosen.flatMap(({ rows }) => rows);
  });
}

/** One ATIF document for each chosen episode. */
export function selectDocuments(folder: string, selection: Selection): Selected {
  return collect(
    folder,
    selection,
    (candidates) => choose(candidates, selection).flatMap(({ document = [] }) => document),
    (episode) => toAtif(episode),
  );
}

/** The best against the worst episode of each task, if their rewards differ and they begin alike. */
export function selectPairs(folder: string, selection: Selection): Selected {
  return collect(folder, selection, (candidates) => {
    const sorted = [...candidates].sort((a, b) => b.reward - a.reward || a.tokens - b.tokens);
    const count = Math.min(selection.maxPerTask ?? 1, Math.floor(sorted.length / 2));
    return Array.from({ length: count }, (_, index) =>
      pairOf(sorted[index]!, sorted[sorted.length - 1 - index]!),
    ).flat();
  });
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

function choose(candidates: readonly Candidate[], { select, maxPerTask }: Selection): Candidate[] {
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

function collect(
  folder: string,
  { filter = "", dedup = false, role, kind, valFraction = 0 }: Selection,
  rowsOf: (candidates: readonly Candidate[]) => unknown[],
  documentOf?: (episode: StoredEpisode) => AtifTrajectory | undefined,
): Selected {
  const passes = taskFilter(filter);
  if (!existsSync(folder)) throw new UserError(`${folder}: no such folder`);
  const files = episodeFiles(folder, kind);
  if (files.length === 0) {
    throw new UserError(`${folder} has no ${kind === "all" ? "" : `${kind} `}episodes`, {
      hint: "name the folder of a run, or of hone eval; --kind validation selects the episodes of validations",
    });
  }
  const counts = { episodes: 0, unknown: 0, tasks: 0, filtered: 0, damaged: 0, repeated: 0, withoutMessages: 0 };
  const tasks = new Map<string, Candidate[]>();
  for (const episode of episodesOf(folder, files, () => counts.damaged++)) {
    counts.episodes++;
    const reward = episode.trajectories[0]?.reward ?? null;
    if (reward === null || !Number.isFinite(reward)) {
      counts.unknown++;
      continue;
    }
    const trajectories = episode.trajectories.filter(({ name }) => role === undefined || name === role);
    const rows = trajectories.flatMap((trajectory) => rowsOfTrajectory(trajectory, folder));
    if (rows.length === 0) counts.withoutMessages++;
    const own = tasks.get(episode.taskId) ?? [];
    tasks.set(episode.taskId, own);
    const isNew = !dedup || own.every((other) => !isDeepStrictEqual(other.rows, rows));
    if (!isNew) counts.repeated++;
    const solved = episode.correct ?? reward >= 1;
    const tokens = trajectories.reduce((sum, { steps }) => steps.reduce((all, one) => all + one.tokens.length, sum), 0);
    const document = documentOf?.({ ...episode, trajectories });
    own.push({ reward, solved, tokens, rows: isNew ? rows : [], document });
  }
  counts.tasks = tasks.size;
  const selected: Selected = { train: [], validation: [], counts };
  for (const [task, candidates] of tasks) {
    const outcomes: TaskOutcomes = {
      rewards: candidates.map((one) => one.reward),
      solved: candidates.map((one) => one.solved),
    };
    if (!passes(outcomes)) {
      counts.filtered++;
      continue;
    }
    // The same tasks in every export.
    const isHeld = uniforms(deriveSeed(0, "validation", task))() < valFraction;
    selected[isHeld ? "validation" : "train"].push(...rowsOf(candidates.filter(({ rows }) => rows.length > 0)));
  }
  return selected;
}

const fileName = /^step-\d+(-validation)?\.jsonl$/;

/** Of a run, or of each model of an evaluation. @returns paths within the folder */
function episodeFiles(folder: string, kind: Selection["kind"]): string[] {
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
