/** Rollouts of one task that are compared with each other, in one step or in all. */

import { zip } from "../../arrays.ts";
import { UserError } from "../../errors.ts";
import { mean } from "../../statistics.ts";
import type {
  EpisodeRow,
  Group,
  GroupList,
  GroupMember,
  GroupQuery,
  GroupSummary,
  GroupsQuery,
  TaskHistory,
  TaskQuery,
} from "../api.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { type IndexedRow, toRows, wholeRows } from "./episode-list.ts";
import { type Given, type Kind, kindOf, required, wholeNumberOf } from "./parameters.ts";
import { readKept } from "./read-kept.ts";
import { fromStored } from "./stored.ts";

interface Place {
  step: number;
  kind: Kind;
}

const placeOf = ({ step, kind }: Given<GroupsQuery>): Place => ({
  step: wholeNumberOf("step", required("step", step), 0),
  kind: kindOf(kind),
});

export function groupList(database: IndexDatabase, query: Given<GroupsQuery>): GroupList {
  return { groups: summaries(database, placeOf(query)) };
}

/** @throws UserError if there is no such task in this step */
export function group(database: IndexDatabase, folder: string, query: Given<GroupQuery>): Group {
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
  const members = zip(rows, toRows(database, rows)).map(([indexed, shown]): GroupMember => {
    const kept = readKept(folder, indexed);
    row ??= kept.row;
    const replies = kept.trajectories.map((trajectory) => trajectory.steps.at(-1)?.text ?? "");
    return { ...shown, explanation: indexed.explanation, replies };
  });
  return { step, kind, task, row, groups, members, steps: steps.map((each) => each.step) };
}

/** @throws UserError if the run has no such task */
export function taskHistory(database: IndexDatabase, folder: string, query: Given<TaskQuery>): TaskHistory {
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
  return { task, row: readKept(folder, first).row ?? null, steps };
}

function summaries(database: IndexDatabase, { step, kind }: Place, task?: string): GroupSummary[] {
  const rows = database
    .prepare(
      `SELECT task, role, reward, boundary FROM trajectories
       WHERE step = ? AND kind = ? AND role IS NOT NULL ${task === undefined ? "" : "AND task = ?"}
       ORDER BY place, part`,
    )
    .all(task === undefined ? [step, kind] : [step, kind, task]) as Pick<IndexedRow, "task" | "role" | "reward">[];
  const groups = new Map<string, GroupSummary>();
  for (const { task, role, reward } of rows) {
    const name = JSON.stringify([task, role]);
    const found = groups.get(name) ?? emptyGroup({ step, kind }, task, role ?? "");
    groups.set(name, found);
    found.rewards.push(fromStored(reward));
  }
  for (const found of groups.values()) {
    const known = found.rewards.filter((reward): reward is number => typeof reward === "number");
    const average = meanOf(known);
    found.size = found.rewards.length;
    found.mean = average;
    found.deviation =
      average === null ? null : Math.sqrt(mean(known.map((reward) => (reward - (average as number)) ** 2)));
    if (kind === "train") found.zeroSignal = noSignal(known, found.size);
  }
  return [...groups.values()];
}

const emptyGroup = (place: Place, task: string, role: string): GroupSummary => ({
  ...place,
  task,
  role,
  size: 0,
  rewards: [],
  mean: null,
  deviation: null,
  zeroSignal: null,
});

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
