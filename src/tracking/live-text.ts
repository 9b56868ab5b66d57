/** The line that is redrawn while a run goes on, and the summary at its end. Pure text. */
import { printable } from "../printable.ts";
import { mean } from "../statistics.ts";
import { formatCount, formatNumber, formatSeconds } from "./numbers.ts";
import { bar, chart, sparkline } from "./plots.ts";
import { fractionDone, type Progress, timeLeft } from "./progress.ts";
import { fit, type Segment } from "./segments.ts";
import { plainStyles, type Styles, validationValues } from "./step-line.ts";

export interface Wait {
  /** What is waited for, e.g. "the judge model". */
  what: string;
  /** For how long already. */
  seconds: number;
}

/** Waits shorter than this are ordinary. */
const namedWaitSeconds = 10;

/** @param width characters there are */
export function liveText(
  progress: Progress,
  waits: readonly Wait[],
  now: number,
  width: number,
  styles: Styles = plainStyles,
): string {
  const { phase, done, total, tokens, totalSteps, stepsDone, rewards } = progress;
  const running = totalSteps > 0;
  const left = timeLeft(progress, now);
  const phaseSeconds = now - progress.phaseStart;
  const speed =
    phase === "sampling" && tokens > 0 && phaseSeconds > 0.5 ? tokens / phaseSeconds : progress.tokensPerSecond;
  const longest = [...waits].sort((one, other) => other.seconds - one.seconds)[0];
  const named = longest !== undefined && longest.seconds > namedWaitSeconds ? longest : undefined;
  const finite = rewards.filter(Number.isFinite);
  const barWidth = Math.max(8, Math.min(24, Math.floor(width / 6)));
  const step = Math.min(totalSteps, stepsDone + 1);

  const segments: Segment[] = [];
  const add = (weight: number, text: string, style?: (text: string) => string, close = false) =>
    segments.push({ text, weight, close, ...(style ? { style } : {}) });
  if (running) add(4, bar(fractionDone(progress), barWidth), styles.accent);
  if (running) add(0, `step ${step}/${totalSteps}`, styles.bold);
  if (phase !== "") add(1, printable(total > 0 ? `${phase} ${done}/${total}` : phase));
  if (named) add(2, `waiting for ${printable(named.what)} (${formatWhole(named.seconds)})`, styles.bad);
  if (finite.length > 0) {
    add(3, `reward ${formatNumber(finite.at(-1)!)}`);
    if (finite.length > 1) add(5, sparkline(finite, 12), styles.good, true);
  }
  if (speed !== undefined && running) add(8, `${formatCount(speed)} tok/s`, styles.dim);
  add(7, formatSeconds(now - (running ? progress.stepStart : progress.phaseStart)), styles.dim);
  if (left !== undefined) add(6, `${left.rough ? "about " : ""}${formatWhole(left.seconds)} left`, styles.dim);
  return fit(segments, width);
}

/** Without the tenths, which would only flicker. */
const formatWhole = (seconds: number) => (seconds < 59.5 ? `${Math.round(seconds)} s` : formatSeconds(seconds));

/** What the run has come to: a chart of the reward and a few figures. */
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
  const { first, last } = validation ?? {};
  for (const [name, after] of stepsDone > 0 ? validationValues(last ?? {}) : []) {
    const before = first === last ? undefined : first?.[name];
    rows.push([name, before === undefined ? styles.bold(formatNumber(after)) : change(before, after)]);
  }
  if (stepsHere > 0) {
    const steps = `${stepsHere} step${stepsHere === 1 ? "" : "s"}`;
    const time = formatSeconds(now - progress.runStart);
    rows.push(["time", `${time} for ${steps}, ${formatCount(progress.allTokens)} tokens sampled`]);
  }
  const longest = Math.max(0, ...rows.map(([label]) => label.length));
  return [...lines, ...rows.map(([label, text]) => `${label.padEnd(longest)}  ${text}`)];
}
