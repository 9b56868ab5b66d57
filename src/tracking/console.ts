/**
 * The console of a run, a subscriber: a terminal gets one line per step and, below, a line that is redrawn in place. A pipe gets only the
 * lines, without control codes.
 */
import pc from "picocolors";
import { printable } from "../base/text.ts";
import { mean } from "../base/values.ts";
import {
  bar,
  chart,
  describeEvent,
  fit,
  plainStyles,
  type Segment,
  type Style,
  type Styles,
  sparkline,
  stepLegend,
  stepLine,
  textWidth,
  validationLine,
  validationValues,
  wantsColors,
} from "./console-lines.ts";
import {
  formatCount,
  formatNumber,
  formatSeconds,
  type Metrics,
  type RunEvent,
  type Subscriber,
  stepSummary,
} from "./events.ts";

interface ConsoleOptions {
  out?: Terminal & { isTTY?: boolean };
  /** Other streams of the same screen. */
  others?: readonly Terminal[];
  /** What the run waits for now; called a few times per second. */
  waitingFor?: readonly (() => readonly Wait[])[];
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
    waitingFor = [],
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

  const waits = () => waitingFor.flatMap((each) => each());
  const width = () => (live ? Math.max(20, (out.columns || 80) - 1) : Number.POSITIVE_INFINITY);
  const print = (text: string) => out.write(`${text}\n`);
  const timer = setInterval(tick, live ? redrawMs : 1000);
  timer.unref();

  function tick(): void {
    if (live) return void line?.draw(liveText(progress, waits(), now(), width(), styles));
    const longest = Math.max(0, ...waits().map(({ seconds }) => seconds));
    if (longest < reportedWaitSeconds) reportWaitAfter = reportedWaitSeconds;
    if (longest < reportWaitAfter) return;
    reportWaitAfter = longest * 2;
    const wait = waits().find(({ seconds }) => seconds >= longest);
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

// How far a run is: a state that each event advances. The live line and the summary show it.

export interface Progress {
  totalSteps: number;
  /** Includes the steps before a resume. */
  stepsDone: number;
  /** Steps done by this process. */
  stepsHere: number;
  /** What the run is doing: a status text, or "sampling", "training", "validating". */
  phase: string;
  /** How far the phase is; total is 0 if the phase has no count. */
  done: number;
  total: number;
  /** Tokens sampled in this phase. */
  tokens: number;
  phaseStart: number;
  stepStart: number;
  runStart: number;
  /** Reward of each finished step, oldest first; NaN if the step has none. */
  rewards: number[];
  /** Seconds of each of the last five steps of this process. */
  seconds: number[];
  /** The share of sampling in the time of the last step. */
  samplingShare: number;
  tokensPerSecond: number | undefined;
  /** Tokens sampled by this process. */
  allTokens: number;
  validation: { first: Metrics; last: Metrics } | undefined;
}

/** @param now seconds on a steady clock, the same in all calls */
export function newProgress(now: number): Progress {
  return {
    totalSteps: 0,
    stepsDone: 0,
    stepsHere: 0,
    phase: "",
    done: 0,
    total: 0,
    tokens: 0,
    phaseStart: now,
    stepStart: now,
    runStart: now,
    rewards: [],
    seconds: [],
    samplingShare: 0.5,
    tokensPerSecond: undefined,
    allTokens: 0,
    validation: undefined,
  };
}

/** Changes `progress` according to the event. */
export function advance(progress: Progress, event: RunEvent, now: number): void {
  switch (event.type) {
    case "run-start":
      progress.totalSteps = event.totalSteps;
      progress.stepsDone = event.step;
      progress.rewards = Array.from(event.history, ({ metrics }) => stepSummary(metrics).reward ?? Number.NaN);
      progress.runStart = now;
      progress.stepStart = now;
      break;
    case "setup-status":
      enter(progress, event.text, now);
      break;
    case "rollout-progress":
      // The rollouts of a validation leave the phase as it is.
      if (progress.phase !== "validating") enter(progress, "sampling", now);
      progress.allTokens += event.tokens - (event.tokens < progress.tokens ? 0 : progress.tokens);
      progress.tokens = event.tokens;
      progress.done = event.done;
      progress.total = event.total;
      break;
    case "update-progress":
      enter(progress, "training", now);
      progress.done = event.done;
      progress.total = event.total;
      break;
    case "validation-start":
      enter(progress, "validating", now);
      break;
    case "validation-end":
      progress.validation = { first: progress.validation?.first ?? event.metrics, last: event.metrics };
      enter(progress, "", now);
      break;
    case "step-end": {
      const { reward, sampling, tokensPerSecond } = stepSummary(event.metrics);
      progress.rewards.push(reward ?? Number.NaN);
      progress.seconds = [...progress.seconds, event.seconds].slice(-5);
      if (sampling !== undefined && event.seconds > 0) progress.samplingShare = Math.min(1, sampling / event.seconds);
      progress.tokensPerSecond = tokensPerSecond ?? progress.tokensPerSecond;
      progress.totalSteps = event.total;
      progress.stepsDone = event.step;
      progress.stepsHere++;
      progress.stepStart = now;
      enter(progress, "", now);
      break;
    }
  }
}

function enter(progress: Progress, phase: string, now: number): void {
  if (progress.phase === phase) return;
  progress.phase = phase;
  progress.phaseStart = now;
  progress.done = 0;
  progress.total = 0;
  progress.tokens = 0;
}

const phaseShare = ({ done, total }: Progress) => (total > 0 ? done / total : 0);

/** The share of the run that is done, including the current step, 0..1. */
export function fractionDone(progress: Progress): number {
  const { totalSteps, stepsDone, samplingShare, phase } = progress;
  let ofStep = 0;
  if (phase === "sampling") ofStep = phaseShare(progress) * samplingShare;
  if (phase === "training") ofStep = samplingShare + phaseShare(progress) * (1 - samplingShare);
  return totalSteps > 0 ? Math.min(1, (stepsDone + ofStep) / totalSteps) : 0;
}

/**
 * Seconds until the last step is done, from the median of the latest steps. In the first step from its sampling and the
 * part of its training that is done (`rough`), once that is a quarter; undefined before.
 */
export function timeLeft(progress: Progress, now: number): { seconds: number; rough: boolean } | undefined {
  const recent = [...progress.seconds].sort((left, right) => left - right);
  const median = recent[Math.floor(recent.length / 2)];
  const step = median ?? firstStepSeconds(progress, now);
  if (step === undefined) return undefined;
  const ofStep = Math.min(step, Math.max(0, now - progress.stepStart));
  const seconds = Math.max(0, step * (progress.totalSteps - progress.stepsDone) - ofStep);
  return { seconds, rough: median === undefined };
}

/** Rollouts run side by side, so the first that are done do not tell how long the others take. */
function firstStepSeconds(progress: Progress, now: number): number | undefined {
  const { phase, phaseStart, stepStart } = progress;
  const part = phaseShare(progress);
  if (phase !== "training" || part < 0.25) return undefined;
  return phaseStart - stepStart + (now - phaseStart) / part;
}
