/** Rows of a step: checked, limited in length, and as the episodes and sequences that the loop takes. */
import { setImmediate } from "node:timers/promises";
import type { Config } from "../config/schema.ts";
import type { Task } from "../data/task.ts";
import type { Dataset } from "../data/types.ts";
import { HoneError, RunError, UserError } from "../errors.ts";
import type { StepInput } from "../trainer/source.ts";
import { type MemberAdvantage, toBatch } from "../trajectories/to-batch.ts";
import type { Episode, Step, Trajectory, TrajectoryGroup } from "../trajectories/types.ts";
import { type LengthLimit, limitLength } from "./limit-length.ts";

export function lengthLimit({ data, training }: Config, contextWindow: number): LengthLimit {
  return { most: Math.min(data.max_length ?? training.max_length, contextWindow), truncation: data.truncation };
}

/** Adds the row's origin to an error. */
export async function ofRow<T>({ origin }: Task, work: () => Promise<T> | T): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof HoneError) || error.message.startsWith(origin)) throw error;
    const Kind = error instanceof RunError ? RunError : UserError;
    throw new Kind(`${origin}: ${error.message}`, { hint: error.hint, cause: error });
  }
}

/** Rendering takes up to a millisecond. Of more rows, this many are rendered before the run starts, evenly spaced. */
const mostRendered = 20_000;

/** Invalid rows that are named in one message. */
const mostNamed = 5;

/**
 * Checks every row before the run starts, so that an invalid row 70,000 does not stop it overnight. If long rows are
 * refused, those that may be too long are encoded.
 *
 * @param check returns what is strange about the row, in the plural, or undefined
 * @throws UserError naming the first invalid rows and the number of the others
 */
export async function checkRows(
  dataset: Dataset<unknown>,
  { truncation, most }: LengthLimit,
  check: (task: Task, renders: boolean) => Promise<string | undefined>,
  encode: (task: Task) => Promise<unknown>,
  warn: (text: string) => void,
): Promise<void> {
  const strange = new Map<string, { count: number; first: string }>();
  const refused: UserError[] = [];
  const distance = Math.ceil(dataset.size / mostRendered);
  for (let index = 0; index < dataset.size; index++) {
    // A signal can end the check.
    if (index % 1000 === 0) await setImmediate();
    const task = dataset.task(index);
    try {
      const why = await ofRow(task, () => check(task, index % distance === 0));
      if (why !== undefined) {
        const { count, first } = strange.get(why) ?? { count: 0, first: task.origin };
        strange.set(why, { count: count + 1, first });
      }
      // A token is at least one byte; a template writes less than half of the text.
      const mayBeLong = truncation === "error" && JSON.stringify(task.row).length > most / 2;
      if (mayBeLong) await ofRow(task, () => encode(task));
    } catch (error) {
      if (!(error instanceof UserError)) throw error;
      refused.push(error);
    }
  }
  if (refused.length > 0) throw joinErrors(refused, dataset.size);
  if (distance > 1) warn(`the chat template was tried with every ${distance}th of ${dataset.size} rows`);
  for (const [why, { count, first }] of strange) warn(`${count} of ${dataset.size} rows ${why}; the first is ${first}`);
}

function joinErrors([first, ...others]: readonly UserError[], size: number): UserError {
  if (others.length === 0) return first!;
  const named = [first!, ...others.slice(0, mostNamed - 1)].map(({ message }) => `\n  ${message}`);
  const more = others.length + 1 - named.length;
  const rest = more === 0 ? "" : `\n  and ${more} more`;
  return new UserError(`${others.length + 1} of ${size} rows cannot be learned:${named.join("")}${rest}`, {
    hint: first!.hint,
    cause: first,
  });
}

/** A trajectory of given steps, by its role. */
export interface GivenTrajectory {
  role: string;
  steps: readonly Step[];
}

/** One row of a step's data. */
export interface GivenRow {
  task: Task;
  trajectories: readonly GivenTrajectory[];
  cut: number;
  dropped: number;
}

export async function limited(
  steps: Promise<Step[]>,
  role: string,
  limit: LengthLimit,
): Promise<{ trajectory: GivenTrajectory; cut: number; dropped: number }> {
  const { steps: left, change } = limitLength(await steps, limit);
  return { trajectory: { role, steps: left }, cut: Number(change === "cut"), dropped: Number(change === "dropped") };
}

/** Rows as the input of a step. Each row is an episode, so that it is recorded and shown like a rollout. */
export function toStepInput(rows: readonly GivenRow[], epoch: number, most: number): StepInput {
  const episodes: Episode[] = [];
  const groups: TrajectoryGroup[] = [];
  const rowOf: number[] = [];
  for (const [row, { task, trajectories }] of rows.entries()) {
    const own = trajectories.map(({ role, steps }): Trajectory => ({ name: role, steps: [...steps], reward: null }));
    const episode: Episode = {
      id: `${task.id}:0`,
      taskId: task.id,
      rollout: 0,
      trajectories: own,
      termination: "env_done",
      correct: null,
      metrics: {},
      retries: 0,
      seconds: 0,
    };
    episodes.push(episode);
    for (const trajectory of own) {
      // Nothing compares rewards.
      const members = [{ episode, trajectory, reward: Number.NaN }];
      rowOf.push(row);
      groups.push({ id: `${task.id}:${trajectory.name}`, taskId: task.id, role: trajectory.name, members });
    }
  }
  const weights = groups.map((): MemberAdvantage[] => [1]);
  const { batch, sources, metrics } = toBatch(groups, weights, { maxLength: most });
  const sum = (count: (row: GivenRow) => number) => rows.reduce((total, row) => total + count(row), 0);
  return {
    gathered: {
      epoch,
      episodes,
      groups: [],
      kept: groups,
      counts: { "data/cut_rows": sum(({ cut }) => cut), "data/dropped_rows": sum(({ dropped }) => dropped) },
      draws: 1,
      solved: { none: 0, partial: 0, all: 0 },
    },
    credit: { groups, advantages: weights, moments: undefined, metrics: {} },
    // All sequences of a row have one number.
    batch: { ...batch, groups: batch.groups.map((group) => rowOf[group]!) },
    sources,
    metrics,
  };
}
