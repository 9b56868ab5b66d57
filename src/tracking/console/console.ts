/**
 * The subscriber that people watch. A terminal gets one line per step and, below, a line that is redrawn in place. A pipe
 * gets only the lines, without control codes.
 */
import pc from "picocolors";
import { wantsColors } from "../../colors.ts";
import { printable } from "../../printable.ts";
import { mean } from "../../statistics.ts";
import { textWidth } from "../../text-width.ts";
import type { RunEvent, Subscriber } from "../events.ts";
import { formatCount, formatNumber, formatSeconds } from "../numbers.ts";
import { describeEvent } from "./describe-event.ts";
import { advance, fractionDone, newProgress, type Progress, timeLeft } from "./progress.ts";
import {
  fit,
  plainStyles,
  type Segment,
  type Style,
  type Styles,
  stepLegend,
  stepLine,
  validationLine,
  validationValues,
} from "./step-line.ts";
import { bar, chart, sparkline } from "./text-plots.ts";

interface ConsoleOptions {
  out?: Terminal & { isTTY?: boolean };
  /** Other streams of the same screen. */
  others?: readonly Terminal[];
  /** What the run waits for now; called a few times per second. */
  waitingFor?: () => readonly Wait[];
  /** Default: `live`, unless NO_COLOR is set. */
  colors?: boolean;
  /** Steady clock, seconds. */
  now?: () => number;
}

const redrawMs = 120;
/** A pipe reports a wait after this long, and again each time that it has doubled. */
const reportedWaitSeconds = 60;
/** Shorter runs need no estimate. */
const shortRunSeconds = 120;

export function consoleSubscriber(options: ConsoleOptions = {}): Subscriber {
  const {
    out = process.stdout,
    others = out === process.stdout && process.stderr.isTTY ? [process.stderr] : [],
    waitingFor = () => [],
    now = () => performance.now() / 1000,
  } = options;
  const live = out.isTTY === true && process.env.TERM !== "dumb";
  const colors = options.colors ?? (live && wantsColors(out));
  const styles = colors ? colored : plainStyles;
  const progress = newProgress(now());
  let line: LiveLine | undefined;
  let reportWaitAfter = reportedWaitSeconds;
  let ended = false;
  let estimatedByUpdates = false;

  const width = () => (live ? Math.max(20, (out.columns || 80) - 1) : Number.POSITIVE_INFINITY);
  const print = (text: string) => out.write(`${text}\n`);
  const timer = setInterval(tick, live ? redrawMs : 1000);
  timer.unref();

  function tick(): void {
    if (live) return void line?.draw(liveText(progress, waitingFor(), now(), width(), styles));
    const longest = Math.max(0, ...waitingFor().map(({ seconds }) => seconds));
    if (longest < reportedWaitSeconds) reportWaitAfter = reportedWaitSeconds;
    if (longest < reportWaitAfter) return;
    reportWaitAfter = longest * 2;
    const wait = waitingFor().find(({ seconds }) => seconds >= longest);
    if (wait) print(`waiting for ${printable(wait.what)} for ${formatSeconds(wait.seconds)}`);
  }

  function stop(): void {
    clearInterval(timer);
    line?.end();
    line = undefined;
  }

  return {
    event(event) {
      const previousReward = progress.rewards.at(-1);
      const isRepeated = event.type === "setup-status" && event.text === progress.phase;
      advance(progress, event, now());
      if (event.type === "run-end") {
        ended = true;
        stop();
        for (const text of [...summary(progress, now(), live ? width() : 80, styles), ...lastLines(event)]) print(text);
        return;
      }
      if (live && !ended) line ??= liveLine([out, ...others]);
      const text = isRepeated || (live && event.type === "setup-status") ? null : shown(event, previousReward);
      if (text !== null) print(text);
      const isFirst = event.type === "step-end" && progress.stepsHere === 1;
      const notes = [isFirst ? stepLegend(event.metrics) : undefined, estimated(event)].filter(
        (one) => one !== undefined,
      );
      for (const note of notes) print(styles.dim(note));
      if (live && (text !== null || notes.length > 0)) tick();
    },
    async close() {
      stop();
    },
  };

  /** A long run gets two estimates: in the training of its first step, and after this step. */
  function estimated(event: RunEvent): string | undefined {
    const { totalSteps, stepsDone, stepsHere } = progress;
    const byStep = event.type === "step-end" && stepsHere === 1;
    const byUpdates = event.type === "update-progress" && stepsHere === 0 && !estimatedByUpdates;
    const left = byStep || byUpdates ? timeLeft(progress, now()) : undefined;
    if (left === undefined) return undefined;
    estimatedByUpdates = true;
    if (left.seconds < shortRunSeconds) return undefined;
    const basis = byStep ? "the first step" : "the first step so far";
    return `about ${formatSeconds(left.seconds)} for ${formatCount(totalSteps - stepsDone)} steps, estimated from ${basis}`;
  }

  function shown(event: RunEvent, previousReward: number | undefined): string | null {
    if (event.type === "step-end") return stepLine(event, previousReward, { width: width(), styles });
    if (event.type === "validation-end") return validationLine(event, { width: width(), styles });
    const text = event.type === "rollout-log" ? null : describeEvent(event);
    if (text === null) return null;
    if (event.type === "warning" || event.type === "health") return styles.bad(text);
    return event.type === "run-start" ? text : styles.dim(text);
  }
}

/** A run that succeeded ends with its report only. The error of a failed run follows on standard error, and is in the run's log. */
function lastLines(event: Extract<RunEvent, { type: "run-end" }>): readonly string[] {
  if (event.reason === "failed") return ["the run failed"];
  if (event.reason === "done" && event.text === undefined) return event.report ?? [];
  return [describeEvent(event) ?? ""];
}

const paint = pc.createColors(true);
const colored: Styles = {
  dim: paint.dim,
  bold: paint.bold,
  good: paint.green,
  bad: paint.yellow,
  accent: paint.cyan,
};

/** The part of `process.stdout` that is used here. */
export interface Terminal {
  /** 0 if a terminal does not know it. */
  columns?: number;
  write(text: string | Uint8Array, ...rest: unknown[]): boolean;
}

/** A line at the bottom of a terminal, redrawn in place. All other output, including `console.log`, scrolls above it. */
interface LiveLine {
  /** Replaces the text of the line, which must fit into the columns. */
  draw(text: string): void;
  /** Removes the line and restores the streams. */
  end(): void;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: colors are control characters
const controls = /\x1b\[[0-9;]*m/g;

/** @param terminals first the one with the line, then others on the same screen (standard error) */
function liveLine(terminals: readonly [Terminal, ...Terminal[]]): LiveLine {
  const [screen] = terminals;
  const writeScreen = screen.write;
  const put = (text: string) => void writeScreen.call(screen, text);
  let shown = 0;
  /** Other output has left the cursor in the middle of a line. */
  let isMidLine = false;

  function erase(): void {
    if (shown === 0) return;
    // A terminal that has become narrower has wrapped the line.
    const rows = Math.ceil(shown / (screen.columns || 80)) - 1;
    put(`${rows > 0 ? `\x1b[${rows}A` : ""}\r\x1b[J`);
    shown = 0;
  }

  const restore = terminals.map((terminal) => {
    const { write } = terminal;
    terminal.write = (text, ...rest) => {
      erase();
      const end = typeof text === "string" ? text.at(-1) : text.at(-1) === 10 ? "\n" : "x";
      if (end !== undefined) isMidLine = end !== "\n" && end !== "\r";
      return write.call(terminal, text, ...rest);
    };
    return () => {
      terminal.write = write;
    };
  });

  return {
    draw(text) {
      if (isMidLine) return; // The line would split what another writer prints piece by piece.
      erase();
      put(text);
      shown = textWidth(text.replace(controls, ""));
    },
    end() {
      erase();
      for (const undo of restore) undo();
    },
  };
}

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
