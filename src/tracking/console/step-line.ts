/** A finished step or validation as one line of text. The caller passes the width and the colors. */
import { cutText, textWidth } from "../../text-width.ts";
import type { Metrics, RunEvent } from "../events.ts";
import { formatChange, formatCount, formatNumber, formatRate, formatSeconds } from "../numbers.ts";
import { stepSummary } from "../step-summary.ts";

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
