/**
 * Lines of text for the console and other commands: steps, events, plots made of characters, colors. Pure, but for the colors of the
 * terminal.
 */
import { isAbsolute, relative } from "node:path";
import pc from "picocolors";
import { formatBytes } from "../base/files.ts";
import { printable, printableLines } from "../base/text.ts";
import {
  formatChange,
  formatCount,
  formatNumber,
  formatRate,
  formatSeconds,
  type Metrics,
  type RunEvent,
  stepSummary,
} from "./events.ts";

// How many columns of a terminal a text takes, and text cut to a number of columns.

/** Letters of East Asian scripts and pictures take two columns (Unicode's wide and fullwidth ranges, in short). */
const wide =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{20000}-\u{3fffd}]|\p{Emoji_Presentation}|\ufe0f$/u;
/** Marks that are drawn on the letter before. */
const empty = /^[\p{Mn}\p{Me}\p{Cf}]+$/u;

const characters = new Intl.Segmenter(undefined, { granularity: "grapheme" });

const columnsOf = (character: string) => (wide.test(character) ? 2 : empty.test(character) ? 0 : 1);

// biome-ignore lint/suspicious/noControlCharactersInRegex: plain ASCII has one column for each character
const ascii = /^[\x00-\x7f]*$/;

export function textWidth(text: string): number {
  if (ascii.test(text)) return text.length;
  return Array.from(characters.segment(text), ({ segment }) => columnsOf(segment)).reduce<number>(
    (sum, one) => sum + one,
    0,
  );
}

/** The text, or its beginning with an ellipsis if it has more columns. */
export function cutText(text: string, width: number): string {
  if (textWidth(text) <= width) return text;
  let cut = "";
  let left = width - 1;
  for (const { segment } of characters.segment(text)) {
    left -= columnsOf(segment);
    if (left < 0) break;
    cut += segment;
  }
  return width < 1 ? "" : `${cut}\u2026`;
}

// A finished step or validation as one line of text. The caller passes the width and the colors.

export interface Styles {
  dim: Style;
  bold: Style;
  good: Style;
  bad: Style;
  accent: Style;
}

const same: Style = (text) => text;
export const plainStyles: Styles = { dim: same, bold: same, good: same, bad: same, accent: same };

export type StepEnd = Extract<RunEvent, { type: "step-end" }>;

interface Look {
  /** In characters. */
  width?: number;
  styles?: Styles;
}

/**
 * `step  3/20  reward 0.342 (+0.09)  solved 5/16  groups 12/16 with signal  loss ..  kl ..  grad ..  lr ..  12.3 s (..)  1,234 tok/s`.
 * Leaves out what the step does not have, and the least important parts where the line does not fit.
 * @param previousReward of the step before, for the change in parentheses
 */
export function stepLine(
  event: StepEnd,
  previousReward?: number,
  { width = Number.POSITIVE_INFINITY, styles = plainStyles }: Look = {},
): string {
  const { step, total, seconds } = event;
  const { reward, solved, tasks, informative, groups, gradNorm, ...summary } = stepSummary(event.metrics);
  const segments: Segment[] = [
    { text: `step ${String(step).padStart(String(total).length)}/${total}`, weight: 0, style: styles.bold },
  ];
  const add = (weight: number, text: string | undefined, style?: Style, close = false) => {
    if (text !== undefined) segments.push({ text, weight, style, close });
  };
  const named = (name: string, value: number | undefined, format = formatNumber) =>
    value === undefined ? undefined : `${name} ${format(value)}`;

  add(0, named("reward", reward), styles.accent);
  if (reward !== undefined && previousReward !== undefined) {
    const change = reward - previousReward;
    add(4, `(${formatChange(change)})`, trend(change, styles), true);
  }
  if (solved !== undefined && tasks !== undefined) add(2, `solved ${aligned(solved, tasks)}`);
  if (informative !== undefined && groups !== undefined) {
    add(3, `groups ${aligned(informative, groups)} with signal`, informative === 0 ? styles.bad : undefined);
  }
  add(8, named("loss", summary.loss), styles.dim);
  add(9, named("kl", summary.kl), styles.dim);
  add(7, named("grad", gradNorm), gradNorm === undefined || Number.isFinite(gradNorm) ? styles.dim : styles.bad);
  add(10, named("lr", summary.learningRate, formatRate), styles.dim);
  add(1, formatSeconds(seconds).padStart(6));
  const notable = (name: string, value = 0) =>
    value >= 0.05 * seconds && value >= 0.1 ? named(name, value, oneDecimal) : undefined;
  const parts = [
    named("sample", summary.sampling, oneDecimal),
    named("train", summary.training, oneDecimal),
    notable("validate", summary.validation),
    notable("save", summary.saving),
  ].filter((part) => part !== undefined);
  if (parts.length > 0) add(6, `(${parts.join(" ")})`, styles.dim, true);
  if (summary.tokensPerSecond !== undefined) add(5, `${formatCount(summary.tokensPerSecond)} tok/s`);
  return fit(segments, width);
}

/** Explains the counts of a step's line; undefined if it has none. */
export function stepLegend(metrics: Metrics): string | undefined {
  const { solved, informative } = stepSummary(metrics);
  const parts = [
    solved === undefined ? "" : "solved: tasks that at least one rollout solved",
    informative === undefined ? "" : "with signal: groups whose rewards differ, the only ones that are learned from",
  ].filter((part) => part !== "");
  return parts.length === 0 ? undefined : parts.join("; ");
}

const trend = (change: number, styles: Styles) =>
  change > 0.005 ? styles.good : change < -0.005 ? styles.bad : styles.dim;

/** ` 5/16`: both numbers have the same width, so that the lines of a run align. */
const aligned = (part: number, whole: number) => `${String(part).padStart(String(whole).length)}/${whole}`;

const oneDecimal = (value: number) => value.toFixed(1);

/** `validation  after step 5  reward 0.531  gsm8k/pass@1 0.531  4.2 s`. */
export function validationLine(
  event: { step: number; metrics: Metrics; seconds: number },
  { width = Number.POSITIVE_INFINITY, styles = plainStyles }: Look = {},
): string {
  const segments: Segment[] = [
    { text: "validation", weight: 0, style: styles.bold },
    { text: `after step ${event.step}`, weight: 2 },
  ];
  for (const [index, [name, value]] of validationValues(event.metrics).entries()) {
    const text = `${name.slice("val/".length)} ${(isCount(name) ? formatCount : formatNumber)(value)}`;
    segments.push({ text, weight: index === 0 ? 0 : 3 + index, style: styles.accent });
  }
  segments.push({ text: formatSeconds(event.seconds), weight: 1 });
  return fit(segments, width);
}

const isCount = (name: string) => /^val\/(unknown$|failed$|failures\/)/.test(name);

/** The metrics of a validation (`val/...`) without counts that are 0 and without the reward of its only source. */
export function validationValues(metrics: Metrics): [name: string, value: number][] {
  const reward = metrics["val/reward"];
  return Object.entries(metrics).filter(([name, value]) => {
    const isEmpty = isCount(name) && value === 0;
    const isRepeated = name !== "val/reward" && name.endsWith("/reward") && value === reward;
    return name.startsWith("val/") && !isEmpty && !isRepeated;
  });
}

export type Style = (text: string) => string;

export interface Segment {
  text: string;
  /** The segment with the highest number is dropped first; 0 is never dropped. */
  weight: number;
  /** Applied to what is left: escape codes do not count as width. */
  style?: Style | undefined;
  /** One space before it instead of two, because it explains the segment before it. */
  close?: boolean;
  /** It is cut, instead of dropped, down to this many columns. */
  min?: number;
}

/** Joins the segments that fit into `width` columns. If those of weight 0 do not fit, the line is cut. */
export function fit(segments: readonly Segment[], width: number): string {
  const kept = segments.filter(({ text }) => text !== "");
  for (;;) {
    const excess = textWidth(lineOf(kept)) - width;
    if (excess <= 0) break;
    const heaviest = Math.max(...kept.map(({ weight }) => weight));
    if (heaviest === 0) return cutText(lineOf(kept), width);
    const last = kept.findLastIndex(({ weight }) => weight === heaviest);
    const { min, ...segment } = kept[last]!;
    const room = textWidth(segment.text) - excess;
    if (min !== undefined && room >= min) kept[last] = { ...segment, text: cutText(segment.text, room) };
    else kept.splice(last, 1);
  }
  return lineOf(kept.map((segment) => ({ ...segment, text: segment.style?.(segment.text) ?? segment.text })));
}

const lineOf = (segments: readonly Segment[]) =>
  segments.map(({ text, close }, index) => (index === 0 ? text : `${close ? " " : "  "}${text}`)).join("");

/** Events as sentences for a log, without colors. Null for events that need no line. */
export function describeEvent(event: RunEvent): string | null {
  switch (event.type) {
    case "run-start": {
      const { folder, step, totalSteps, text } = event;
      if (folder === "") return text.join("\n");
      const steps =
        step > 0
          ? `continuing after step ${step} of ${totalSteps}`
          : `${totalSteps} step${totalSteps === 1 ? "" : "s"}`;
      const where = totalSteps > 0 ? `run folder ${shortPath(folder)}: ${steps}` : `results ${shortPath(folder)}`;
      return [...text, where].join("\n");
    }
    case "setup-status":
    case "rollout-log":
      return printable(event.text);
    case "rollouts-queued":
    case "rollout":
    case "rollout-progress":
    case "phase-end":
    case "weights":
    case "update-progress":
    case "validation-start":
    case "samples":
    case "distributions":
    case "plot":
      return null;
    case "step-end":
      return stepLine(event);
    case "validation-end":
      return validationLine(event);
    case "checkpoint-saved": {
      const { path, bytes, seconds, best } = event;
      const saved = `checkpoint ${path}  ${formatBytes(bytes)}  ${formatSeconds(seconds)}`;
      return best === undefined ? saved : `${saved}  best ${best.metric} ${formatNumber(best.value)}`;
    }
    case "checkpoint-removed":
      return `removed ${event.path}`;
    case "warning":
    case "health":
      return `${event.type}: ${indented(event.text)}`;
    case "run-end": {
      const { reason, text, report = [] } = event;
      return [text === undefined ? endings[reason] : `${endings[reason]}: ${indented(text)}`, ...report].join("\n");
    }
  }
}

/** The text may contain a model's words, whose line breaks must not start a line of the log. */
const indented = (text: string) => printableLines(text).replaceAll("\n", "\n  ");

/** Relative to the working directory if it is inside. */
function shortPath(path: string): string {
  const here = relative(process.cwd(), path);
  return here === "" || here.startsWith("..") || isAbsolute(here) ? path : here;
}

const endings = { done: "done", stopped: "stopped before the end", failed: "failed" };

// Plots made of characters: a bar, a sparkline, a chart.

const blocks = "▁▂▃▄▅▆▇█";

/** `fraction` of `width` cells filled. */
export function bar(fraction: number, width: number): string {
  const filled = Math.round(Math.min(1, Math.max(0, fraction)) * width);
  return "█".repeat(filled) + "░".repeat(width - filled);
}

/** One row of at most `width` blocks, scaled from the least to the greatest value. Neighbors are averaged if needed. */
export function sparkline(values: readonly number[], width: number): string {
  const columns = squeeze(values.filter(Number.isFinite), width);
  const { low, high } = extent(columns);
  const top = blocks.length - 1;
  return columns.map((value) => blocks[high > low ? Math.round(((value - low) / (high - low)) * top) : 0]).join("");
}

/**
 * A chart in plain ASCII, one `*` per column, at most `width` wide, with the scale on the left and the first and last
 * position below. A value that is not finite leaves its column empty.
 */
export function chart(values: readonly number[], size: { width: number; height: number; first?: number }): string[] {
  const { height, first = 1 } = size;
  const { low, high } = extent(values.filter(Number.isFinite));
  const [top, bottom] = axisLabels(high, low);
  const margin = Math.max(top.length, bottom.length) + 1;
  const room = Math.max(8, size.width - margin - 2);
  // Spreads out few values: ten steps would make a chart only ten characters wide.
  const spread = Math.max(1, Math.min(4, Math.floor(room / Math.max(1, values.length))));
  const columns = squeeze(values, Math.floor(room / spread));
  const rowOf = (value: number) => (high > low ? Math.round(((value - low) / (high - low)) * (height - 1)) : 0);
  const rows = Array.from({ length: height }, (_, index) => {
    const row = height - 1 - index;
    const label = row === 0 ? bottom : row === height - 1 && high > low ? top : "";
    const cells = columns.map((value) => (Number.isFinite(value) && rowOf(value) === row ? "*" : " ").padEnd(spread));
    return `${label.padStart(margin - 1)} |${cells.join("")}`.trimEnd();
  });
  const length = Math.max(1, (columns.length - 1) * spread + 1);
  const last = String(first + values.length - 1);
  const foot = values.length > 1 ? String(first).padEnd(Math.max(0, length - last.length)) + last : last;
  return [...rows, `${" ".repeat(margin)}+${"-".repeat(length)}`, `${" ".repeat(margin + 1)}${foot}`];
}

/** As many decimals as make the two differ, up to six. */
function axisLabels(high: number, low: number): [string, string] {
  const digits = [2, 3, 4, 5, 6].find((count) => high.toFixed(count) !== low.toFixed(count));
  if (high === low || digits !== undefined) return [high.toFixed(digits ?? 2), low.toFixed(digits ?? 2)];
  return [high.toExponential(2), low.toExponential(2)];
}

function extent(values: readonly number[]): { low: number; high: number } {
  if (values.length === 0) return { low: 0, high: 0 };
  // Not Math.min(...values): a long run has more values than a call may have arguments.
  return {
    low: values.reduce((least, value) => Math.min(least, value)),
    high: values.reduce((most, value) => Math.max(most, value)),
  };
}

/** At most `columns` values, neighbors averaged. */
function squeeze(values: readonly number[], columns: number): number[] {
  if (values.length <= columns) return [...values];
  return Array.from({ length: Math.max(0, columns) }, (_, column) => {
    const from = Math.floor((column * values.length) / columns);
    const part = values.slice(from, Math.floor(((column + 1) * values.length) / columns)).filter(Number.isFinite);
    return part.length === 0 ? Number.NaN : part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}

// Colors of a command's output: on a terminal, or if `FORCE_COLOR` is set. Standard output and standard error are checked
// separately, since one may be redirected.

export function wantsColors(stream: { isTTY?: boolean }): boolean {
  const { NO_COLOR, FORCE_COLOR, TERM } = process.env;
  if (NO_COLOR) return false;
  return FORCE_COLOR ? FORCE_COLOR !== "0" : stream.isTTY === true && TERM !== "dumb";
}

export const outColors = pc.createColors(wantsColors(process.stdout));
export const errColors = pc.createColors(wantsColors(process.stderr));
