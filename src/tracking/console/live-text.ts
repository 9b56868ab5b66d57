/** The text of the live line, and the summary at the end of a run. */
import { printable } from "../../printable.ts";
import { mean } from "../../statistics.ts";
import { formatCount, formatNumber, formatSeconds } from "../numbers.ts";
import { fractionDone, type Progress, timeLeft } from "./progress.ts";
import { fit, plainStyles, type Segment, type Style, type Styles, validationValues } from "./step-line.ts";
import { bar, chart, sparkline } from "./text-plots.ts";

export interface Wait {
  /** What the run waits for, e.g. "the judge model". */
  what: string;
  /** How long it has waited. */
  seconds: number;
}

/** Shorter waits are ordinary. */
const namedWaitSeconds = 10;

/** @param width in columns */
export function liveText(
  progress: Progress,
  waits: readonly Wait[],
  now: number,
  width: number,
  styles: Styles = plainStyles,
): string {
  const { phase, done, total, tokens, totalSteps, stepsDone, rewards } = progress;
  const segments: Segment[] = [];
  const add = (weight: number, text: string, style?: Style, more: Partial<Segment> = {}) =>
    segments.push({ text, weight, style, ...more });
  const isRunning = totalSteps > 0;
  if (isRunning) {
    const barWidth = Math.max(8, Math.min(24, Math.floor(width / 6)));
    add(4, bar(fractionDone(progress), barWidth), styles.accent);
    add(0, `step ${Math.min(totalSteps, stepsDone + 1)}/${totalSteps}`, styles.bold);
  }
  if (phase !== "") add(1, printable(total > 0 ? `${phase} ${done}/${total}` : phase), undefined, { min: 8 });
  const [longest] = [...waits].sort((one, other) => other.seconds - one.seconds);
  if (longest !== undefined && longest.seconds > namedWaitSeconds) {
    add(2, `waiting for ${printable(longest.what)} (${formatWhole(longest.seconds)})`, styles.bad, { min: 24 });
  }
  const finite = rewards.filter(Number.isFinite);
  const reward = finite.at(-1);
  if (reward !== undefined) add(3, `reward ${formatNumber(reward)}`);
  if (finite.length > 1) add(5, sparkline(finite, 12), styles.good, { close: true });
  const phaseSeconds = now - progress.phaseStart;
  const isSampling = phase === "sampling" && tokens > 0 && phaseSeconds > 0.5;
  const speed = isSampling ? tokens / phaseSeconds : progress.tokensPerSecond;
  if (speed !== undefined && isRunning) add(8, `${formatCount(speed)} tok/s`, styles.dim);
  add(7, formatSeconds(isRunning ? now - progress.stepStart : phaseSeconds), styles.dim);
  const left = timeLeft(progress, now);
  if (left !== undefined) add(6, `${left.rough ? "about " : ""}${formatWhole(left.seconds)} left`, styles.dim);
  return fit(segments, width);
}

/** Without tenths, which would only flicker. */
const formatWhole = (seconds: number) => (seconds < 59.5 ? `${Math.round(seconds)} s` : formatSeconds(seconds));

/** A chart of the reward, and a few values from the beginning and the end of the run. */
export function summary(progress: Progress, now: number, width: number, styles: Styles = plainStyles): string[] {
  const { rewards, stepsHere, stepsDone, validation } = progress;
  const lines: string[] = [];
  const rows: [label: string, text: string][] = [];
  const change = (before: number, after: number) => `${formatNumber(before)} -> ${styles.bold(formatNumber(after))}`;
  const finite = rewards.filter(Number.isFinite);
  if (finite.length > 1) {
    const size = { width: Math.max(20, Math.min(width, 72)), height: 8, first: stepsDone - rewards.length + 1 };
    lines.push("", styles.bold("reward by step"), ...chart(rewards, size), "");
    const part = Math.min(3, Math.floor(finite.length / 2));
    const which = part === 1 ? "first and last step" : `first and last ${part} steps`;
    rows.push(["reward", `${change(mean(finite.slice(0, part)), mean(finite.slice(-part)))} (${which})`]);
  }
  if (validation !== undefined && stepsDone > 0) {
    const { first, last } = validation;
    for (const [name, after] of validationValues(last)) {
      const before = first === last ? undefined : first[name];
      rows.push([name, before === undefined ? styles.bold(formatNumber(after)) : change(before, after)]);
    }
  }
  if (stepsHere > 0) {
    const steps = `${stepsHere} step${stepsHere === 1 ? "" : "s"}`;
    const time = formatSeconds(now - progress.runStart);
    rows.push(["time", `${time} for ${steps}, ${formatCount(progress.allTokens)} tokens sampled`]);
  }
  const longest = Math.max(0, ...rows.map(([label]) => label.length));
  return [...lines, ...rows.map(([label, text]) => `${label.padEnd(longest)}  ${text}`)];
}
