/** Rollouts of one task that are compared with each other, in one step or in all. */
import { zip } from "../../arrays.ts";
import { UserError } from "../../errors.ts";
import { mean } from "../../statistics.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { readStored } from "./episode.ts";
import { type EpisodeRow, type IndexedRow, toRows, wholeRows } from "./episode-list.ts";
import { fromStored, type JsonNumber } from "./json.ts";
import { type Given, type Kind, kindOf, required, wholeNumberOf } from "./parameters.ts";

interface Place {
  step: number;
  kind: Kind;
}

const placeOf = ({ step, kind }: Given<GroupsQuery>): Place => ({
  step: wholeNumberOf("step", required("step", step), 0),
  kind: kindOf(kind),
});

export interface GroupsQuery {
  step: string;
  /** Default: train. */
  kind?: Kind;
}

export function groupList(database: IndexDatabase, query: Given<GroupsQuery>) {
  return { groups: summaries(database, placeOf(query)) };
}

export interface GroupQuery extends GroupsQuery {
  task: string;
  /** Default: all roles. */
  role?: string;
}

export type Group = ReturnType<typeof group>;
export type GroupMember = Group["members"][number];

/**
 * All rollouts of one task in one step.
 * @throws UserError if there is no such task in this step
 */
export function group(database: IndexDatabase, folder: string, query: Given<GroupQuery>) {
  const { step, kind } = placeOf(query);
  const task = required("task", query.task);
  const groups = summaries(database, { step, kind }, task).filter(({ role }) => role === (query.role ?? role));
  const condition = "part = 0 AND step = ? AND kind = ? AND task = ? ORDER BY rollout, place";
  const rows = wholeRows(database, condition, [step, kind, task]);
  if (rows.length === 0)
    throw new UserError(`step ${step} has no ${kind} episodes of the task ${task}`, { code: "not_found" });
  const steps = database
    .prepare("SELECT DISTINCT step FROM trajectories WHERE task = ? AND kind = ? ORDER BY step")
    .all([task, kind]) as { step: number }[];
  let row: unknown = null;
  const members = zip(rows, toRows(database, rows)).map(([indexed, shown]) => {
    const kept = readStored(folder, indexed);
    row ??= kept.row;
    /** The last reply of each trajectory. */
    const replies = kept.trajectories.map((trajectory) => trajectory.steps.at(-1)?.text ?? "");
    return { ...shown, explanation: indexed.explanation, replies };
  });
  return {
    step,
    kind,
    task,
    row,
    /** One for each role. */
    groups,
    /** In the order of rollouts. */
    members,
    /** The steps of this kind that have the same task. */
    steps: steps.map((each) => each.step),
  };
}

export interface TaskQuery {
  task: string;
  /** Default: both. */
  kind?: Kind;
}

export type TaskHistory = ReturnType<typeof taskHistory>;

/**
 * The rollouts of one task in all steps, the oldest first.
 * @throws UserError if the run has no such task
 */
export function taskHistory(database: IndexDatabase, folder: string, query: Given<TaskQuery>) {
  const task = required("task", query.task);
  const kind = query.kind === undefined ? undefined : kindOf(query.kind);
  const rest = `part = 0 AND task = ? ${kind === undefined ? "" : "AND kind = ?"} ORDER BY step, kind, rollout, place`;
  const values = kind === undefined ? [task] : [task, kind];
  const found = wholeRows(database, rest, values);
  const [first] = found;
  if (first === undefined) throw new UserError(`the run has no episodes of the task ${task}`, { code: "not_found" });
  const rows = toRows(database, found);
  const bySteps = new Map<string, Pick<EpisodeRow, "step" | "kind"> & { episodes: EpisodeRow[] }>();
  for (const row of rows) {
    const { step, kind } = row;
    const known = bySteps.get(`${step} ${kind}`);
    if (known) known.episodes.push(row);
    else bySteps.set(`${step} ${kind}`, { step, kind, episodes: [row] });
  }
  const steps = Array.from(bySteps.values(), ({ step, kind, episodes }) => {
    return { step, kind, mean: meanOf(episodes.map(({ reward }) => reward)), episodes };
  });
  return { task, row: readStored(folder, first).row ?? null, steps };
}

function summaries(database: IndexDatabase, place: Place, task?: string) {
  const rows = database
    .prepare(
      `SELECT task, role, reward FROM trajectories
       WHERE step = ? AND kind = ? AND role IS NOT NULL ${task === undefined ? "" : "AND task = ?"}
       ORDER BY place, part`,
    )
    .all(task === undefined ? [place.step, place.kind] : [place.step, place.kind, task]) as Pick<
    IndexedRow,
    "task" | "role" | "reward"
  >[];
  const groups = new Map<string, { task: string; role: string; rewards: (JsonNumber | null)[] }>();
  for (const { task, role, reward } of rows) {
    const name = JSON.stringify([task, role]);
    const found = groups.get(name) ?? { task, role: role ?? "", rewards: [] };
    groups.set(name, found);
    found.rewards.push(fromStored(reward));
  }
  return Array.from(groups.values(), (found) => summarize(found, place));
}

export type GroupSummary = ReturnType<typeof summarize>;

function summarize(
  { task, role, rewards }: { task: string; role: string; rewards: (JsonNumber | null)[] },
  place: Place,
) {
  const known = rewards.filter((reward): reward is number => typeof reward === "number");
  const average = meanOf(known);
  const size = rewards.length;
  return {
    ...place,
    task,
    role,
    size,
    rewards,
    mean: average,
    deviation: average === null ? null : Math.sqrt(mean(known.map((reward) => (reward - average) ** 2))),
    /** Why all advantages are zero; null if they are not. */
    zeroSignal: place.kind === "train" ? noSignal(known, size) : null,
  };
}

/** Why a group has no training signal; null if it has one. */
function noSignal(known: readonly number[], size: number): string | null {
  if (known.length === 0) return `no reward of its ${size} rollouts is known`;
  if (known.length === 1) return "only one reward is known, so there is nothing to compare it with";
  const unknown = size > known.length ? ` (${size - known.length} unknown)` : "";
  if (known.every((reward) => reward === known[0])) return `all ${known.length} rewards are ${known[0]}${unknown}`;
  return null;
}

function meanOf(rewards: readonly (number | string | null)[]): number | null {
  const known = rewards.filter((reward): reward is number => typeof reward === "number");
  return known.length === 0 ? null : mean(known);
}
