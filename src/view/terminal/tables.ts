/** A run, its steps and the episodes of a step, one row each. */
import { printable } from "../../printable.ts";
import { chart } from "../../tracking/console/text-plots.ts";
import { readJournalState } from "../index/index-journal.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { describeProblems, readProblems } from "../index/problems.ts";
import type { Anatomy } from "../queries/anatomy.ts";
import { curves, oneCurve } from "../queries/curves.ts";
import type { EpisodeRow } from "../queries/episode-list.ts";
import { bold, dim, type Row, span, wrap } from "./styled.ts";

/** The episodes of a training step, or of the validation after it. */
export interface StepFile {
  step: number;
  kind: "train" | "validation";
}

/** What of the run cannot be read, a chart of the reward over the steps, and the last validation. */
export function runHead(database: IndexDatabase, name: string, width: number): Row[] {
  const problem = describeProblems(readProblems(database));
  const curve = oneCurve(database, "reward/mean");
  const steps = curves(database, { names: "" }).steps;
  // A run of `hone score` has no steps but a report.
  const report = readJournalState(database).end?.report ?? [];
  const byStep = new Map(curve.map(({ step, value }) => [step, Number(value)]));
  const rewards = steps.map((step) => byStep.get(step) ?? Number.NaN);
  const rows: Row[] = [[span(`${name}: ${steps.length} steps`, bold)]];
  if (problem !== undefined) rows.push(...wrap([span(problem, "33")], width));
  if (rewards.some(Number.isFinite)) {
    const lines = chart(rewards, { width, height: 8, first: steps[0] ?? 1 });
    rows.push([span("mean reward of each step", dim)], ...lines.map((text) => [span(text)]));
  } else if (report.length > 0) {
    rows.push(...report.flatMap((line) => (line === "" ? [[]] : wrap([span(printable(line))], width))));
  } else {
    rows.push([span("no step has finished so far", dim)]);
  }
  const validation = curves(database, { kind: "validation" });
  const values = Object.entries(validation.columns)
    .filter(([key, column]) => key.startsWith("val/") && key.split("/").length > 2 && column.at(-1) !== null)
    .map(([key, column]) => `${key.slice("val/".length)} ${round(Number(column.at(-1)))}`);
  if (values.length > 0) rows.push([span(`validation after step ${validation.steps.at(-1)}: ${values.join(", ")}`)]);
  return [...rows, []];
}

/** The metrics shown of each file, by the name that they are shown under. */
const shownMetrics = {
  train: { reward: "reward/mean", gradient: "actor/grad_norm", tokens: "perf/sampled_tokens" },
  validation: { reward: "val/reward" },
};

/** Makes the row of each training step and validation. */
export function fileRows(database: IndexDatabase): (file: StepFile) => Row {
  const valuesOf = (kind: StepFile["kind"]) =>
    Object.entries(shownMetrics[kind]).map(([label, name]) => {
      return { label, byStep: new Map(oneCurve(database, name, kind).map(({ step, value }) => [step, Number(value)])) };
    });
  const known = { train: valuesOf("train"), validation: valuesOf("validation") };
  return ({ step, kind }) => {
    const shown = known[kind].flatMap(({ label, byStep }) => {
      const value = byStep.get(step);
      return value === undefined ? [] : [`${label} ${round(value)}`];
    });
    return [span(`step ${String(step).padStart(4)}  ${kind.padEnd(10)}  ${shown.join("   ")}`)];
  };
}

/** What the rollouts of a step waited for, and the slowest of them. */
export function timeRows({ totals, slowest, rollouts }: Anatomy): Row[] {
  const spent = Object.entries(totals)
    .filter(([, time]) => time > 0)
    .sort(([, left], [, right]) => right - left);
  const sum = spent.reduce((total, [, time]) => total + time, 0);
  if (sum === 0) return [];
  const named = (kind: string) => (kind === "agent" ? "agent's own code" : kind.replaceAll("_", " "));
  const shares = spent.map(([kind, time]) => `${named(kind)} ${((100 * time) / sum).toFixed(0)}%`);
  const slow = slowest.map(({ rollout: index, milliseconds, mostly }) => {
    const { task, rollout } = rollouts[index]!;
    return `${task}:${rollout} ${(milliseconds / 1000).toFixed(1)} s, mostly ${named(mostly)}`;
  });
  return [[span(`time: ${shares.join(", ")}`, dim)], [span(`slowest: ${slow.join("; ")}`, dim)]];
}

export const episodeHead: Row = [
  span("reward  advantage  turns  tokens  ended by                      task and reply", dim),
];

export function episodeRow(row: EpisodeRow): Row {
  const { turns, tokens, termination, failure, id, preview, trajectories, matched } = row;
  // A filter such as role=judge shows the judge's reward.
  const found = matched === undefined ? undefined : trajectories[matched[0] ?? 0];
  const { reward, advantage } = found ?? row;
  const style = failure ? "33" : reward === null ? dim : Number(reward) > 0 ? "32" : "31";
  const learned = advantage === null ? "" : round(Number(advantage));
  return [
    span(reward === null ? "unknown" : round(Number(reward)).padEnd(6), style),
    span(`  ${learned.padStart(9)}  ${String(turns).padStart(5)}  ${String(tokens).padStart(6)}`),
    span(`  ${termination.padEnd(28)}  `),
    span(`${id}${found === undefined ? "" : ` (${found.role})`}  `, dim),
    span(preview),
  ];
}

function round(value: number): string {
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}
