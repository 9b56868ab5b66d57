/** An evaluation as a table and a sentence for each comparison. Pure text. */
import { relative } from "node:path";
import { formatNumber } from "../../tracking/numbers.ts";
import type { AttemptSummary, Comparison, Estimate } from "./attempts.ts";

export interface Evaluation {
  /** Absolute. */
  folder: string;
  models: (AttemptSummary & { name: string; checkpoint: string | null; step: number })[];
  /** Compares each later model with the first. */
  comparisons: (Comparison & { model: string; against: string })[];
}

export function report({ folder, models, comparisons }: Evaluation): string[] {
  const ks = [...new Set(models.flatMap(({ passAt }) => Object.keys(passAt)))];
  const head = ["", "tasks", "rollouts", "reward", ...ks.map((k) => `pass@${k}`), "tokens", "unknown"];
  const rows = models.map(({ name, tasks, rollouts, reward, passAt, meanTokens, unknown }) => [
    name,
    ...[tasks, rollouts].map(String),
    reward === null ? "unknown" : withError(reward),
    ...ks.map((k) => (passAt[k] === undefined ? "" : formatNumber(passAt[k]))),
    meanTokens.toFixed(1),
    String(unknown),
  ]);
  return [
    "",
    ...table(
      models.every(({ unknown }) => unknown === 0) ? [head, ...rows].map((row) => row.slice(0, -1)) : [head, ...rows],
    ),
    "reward: mean ± standard error over tasks",
    ...comparisons.flatMap(({ model, against, tasks, difference, wins, losses, ties, signTest }) => [
      "",
      `${model} against ${against}, on ${tasks} tasks: ${difference.mean < 0 ? "" : "+"}${withError(difference)}${interval(difference)}`,
      `better on ${wins}, worse on ${losses}, equal on ${ties}; sign test: p = ${formatProbability(signTest)}`,
    ]),
    "",
    `results: ${relative(process.cwd(), folder) || folder} (summary.json; tasks.jsonl of each model)`,
  ];
}

const withError = ({ mean, standardError }: Estimate) =>
  standardError === null ? formatNumber(mean) : `${formatNumber(mean)} ± ${formatNumber(standardError)}`;

const interval = ({ interval: found }: Estimate) =>
  found === null ? "" : ` (95%: ${found.map((value) => formatNumber(value)).join(" to ")})`;

const formatProbability = (value: number) => (value < 0.001 ? value.toExponential(0) : value.toFixed(3));

/** Columns of equal width, numbers to the right. */
function table(rows: readonly (readonly string[])[]): string[] {
  const width = (column: number) => Math.max(...rows.map((row) => row[column]?.length ?? 0));
  return rows.map((row) =>
    row.map((cell, column) => (column === 0 ? cell.padEnd(width(0)) : cell.padStart(width(column)))).join("  "),
  );
}
