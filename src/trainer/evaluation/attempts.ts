/** Summarizes the rewards of a model, and compares two models on the same tasks. Pure. */
import { append } from "../../append.ts";
import { mean, standardDeviation } from "../../statistics.ts";

/** One rollout's outcome. */
export interface Attempt {
  task: string;
  /** null: unknown, counted and left out of every mean. */
  reward: number | null;
  solved: boolean;
  /** Sampled in all its model calls. */
  tokens: number;
}

/** A mean with its standard error over tasks and its 95% confidence interval (Student's t). */
export interface Estimate {
  mean: number;
  /** null where there are fewer than two tasks. */
  standardError: number | null;
  interval: [low: number, high: number] | null;
}

export interface AttemptSummary {
  tasks: number;
  rollouts: number;
  /** Rollouts without a known reward. */
  unknown: number;
  /** Over the rollouts whose reward is known; null where there is none. */
  reward: Estimate | null;
  /** Share of the tasks that at least one of k rollouts solves, by k. */
  passAt: Record<string, number>;
  meanTokens: number;
}

export function summarizeAttempts(attempts: readonly Attempt[]): AttemptSummary {
  const tasks = [...byTask(attempts).values()];
  const known = attempts.filter(isKnown);
  const knownByTask = [...byTask(known).values()];
  const rollouts = tasks.reduce((most, all) => Math.max(most, all.length), 0);
  const solved = (all: readonly Attempt[]) => all.filter((one) => one.solved).length;
  return {
    tasks: tasks.length,
    rollouts: attempts.length,
    unknown: attempts.length - known.length,
    reward: known.length === 0 ? null : clusteredMean(knownByTask),
    passAt: Object.fromEntries(
      passCounts(rollouts).flatMap((k) => {
        const enough = knownByTask.filter((all) => all.length >= k);
        const shares = enough.map((all) => passAtK(all.length, solved(all), k));
        return shares.length === 0 ? [] : [[k, mean(shares)]];
      }),
    ),
    meanTokens: mean(attempts.map(({ tokens }) => tokens)),
  };
}

export interface Comparison {
  /** Tasks whose reward is known in both. */
  tasks: number;
  /** The second's reward minus the first's, task by task. */
  difference: Estimate;
  wins: number;
  losses: number;
  ties: number;
  /** Two-sided p-value of the exact sign test over wins and losses. */
  signTest: number;
}

/** `second` against `first`, paired by task; null where no task's reward is known in both. */
export function compareAttempts(first: readonly Attempt[], second: readonly Attempt[]): Comparison | null {
  const before = taskMeans(first);
  const differences = [...taskMeans(second)].flatMap(([task, reward]) => {
    const earlier = before.get(task);
    return earlier === undefined ? [] : [reward - earlier];
  });
  if (differences.length === 0) return null;
  const wins = differences.filter((one) => one > 0).length;
  const losses = differences.filter((one) => one < 0).length;
  const error = standardDeviation(differences, 1) / Math.sqrt(differences.length);
  return {
    tasks: differences.length,
    difference: estimate(mean(differences), error, differences.length),
    wins,
    losses,
    ties: differences.length - wins - losses,
    signTest: signTest(wins, losses),
  };
}

/** The probability that k of n rollouts, drawn without replacement, include one of the c that solved the task. */
export function passAtK(n: number, c: number, k: number): number {
  let none = 1;
  for (let size = n - c + 1; size <= n; size++) none *= 1 - k / size;
  return n - c < k ? 1 : 1 - none;
}

/** The probability of a split at least this uneven if wins and losses were equally likely. */
export function signTest(wins: number, losses: number): number {
  const n = wins + losses;
  let logarithm = -n * Math.LN2;
  let tail = 0;
  for (let count = 0; count <= Math.min(wins, losses); count++) {
    tail += Math.exp(logarithm);
    logarithm += Math.log((n - count) / (count + 1));
  }
  return Math.min(1, 2 * tail);
}

/** Rollouts of one task are not independent: the standard error is over tasks. */
function clusteredMean(tasks: readonly (readonly KnownAttempt[])[]): Estimate {
  const rewards = tasks.flat().map(({ reward }) => reward);
  const center = mean(rewards);
  const deviations = tasks.map((task) => task.reduce((sum, { reward }) => sum + reward - center, 0));
  const squares = deviations.reduce((sum, one) => sum + one ** 2, 0);
  const error = Math.sqrt((squares * tasks.length) / (tasks.length - 1)) / rewards.length;
  return estimate(center, error, tasks.length);
}

function estimate(center: number, error: number, tasks: number): Estimate {
  if (tasks < 2) return { mean: center, standardError: null, interval: null };
  const reach = studentQuantile(tasks - 1) * error;
  return { mean: center, standardError: error, interval: [center - reach, center + reach] };
}

/** The 97.5% quantile of Student's t; from 3 degrees of freedom by the expansion around the normal one, within 0.2%. */
export function studentQuantile(degrees: number): number {
  const [z, terms] = [1.959964, [2.372271, 2.822501, 2.55585, 1.589536]];
  if (degrees < 3) return degrees === 1 ? 12.7062 : 4.302653;
  return terms.reduce((sum, term, index) => sum + term / degrees ** (index + 1), z);
}

type KnownAttempt = Attempt & { reward: number };
const isKnown = (attempt: Attempt): attempt is KnownAttempt => attempt.reward !== null;

const taskMeans = (attempts: readonly Attempt[]) =>
  new Map(
    [...byTask(attempts.filter(isKnown))].map(([task, all]) => [task, mean(all.map(({ reward }) => reward))] as const),
  );

function byTask<T extends Attempt>(attempts: readonly T[]): Map<string, T[]> {
  const tasks = new Map<string, T[]>();
  for (const attempt of attempts) append(tasks, attempt.task, attempt);
  return tasks;
}

/** 1, 2, 4, ... and n itself. */
function passCounts(n: number): number[] {
  const counts: number[] = [];
  for (let k = 1; k < n; k *= 2) counts.push(k);
  return n > 0 ? [...counts, n] : [];
}
