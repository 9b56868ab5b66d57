/**
 * The subscriber that people watch. On a terminal: a line redrawn in place below one clean line a step. Piped: only
 * the clean lines, without control codes.
 */
import pc from "picocolors";
import { wantsColors } from "../colors.ts";
import { printable } from "../printable.ts";
import { describeEvent } from "./describe-event.ts";
import type { RunEvent, Subscriber } from "./events.ts";
import { type LiveLine, liveLine, type Terminal } from "./live-line.ts";
import { liveText, summary, type Wait } from "./live-text.ts";
import { formatCount, formatSeconds } from "./numbers.ts";
import { advance, newProgress, timeLeft } from "./progress.ts";
import { plainStyles, type Styles, stepLine, validationLine } from "./step-line.ts";

export interface ConsoleOptions {
  out?: Terminal & { isTTY?: boolean };
  /** Others that write to the same screen. */
  others?: readonly Terminal[];
  /** What is waited for at this moment; asked for a few times a second. */
  waitingFor?: () => readonly Wait[];
  /** Whether to redraw a line in place; by default where `out` is a terminal that can. */
  live?: boolean;
  /** By default where `live`, unless NO_COLOR is set. */
  colors?: boolean;
  /** Steady clock, seconds. */
  now?: () => number;
}

const redrawMs = 120;
/** Piped output names a wait when it has lasted this long, and again each time that has doubled. */
const saidWaitSeconds = 60;
/** Nobody plans around a run that ends sooner. */
const shortRunSeconds = 120;

export function consoleSubscriber(options: ConsoleOptions = {}): Subscriber {
  const {
    out = process.stdout,
    others = out === process.stdout && process.stderr.isTTY ? [process.stderr] : [],
    waitingFor = () => [],
    live = out.isTTY === true && process.env.TERM !== "dumb",
    colors = live && wantsColors(out),
    now = () => performance.now() / 1000,
  } = options;
  const styles = colors ? colored : plainStyles;
  const progress = newProgress(now());
  let line: LiveLine | undefined;
  let sayWaitAfter = saidWaitSeconds;
  let ended = false;
  let estimatedByRollouts = false;

  const width = () => (live ? Math.max(20, (out.columns ?? 80) - 1) : Number.POSITIVE_INFINITY);
  const say = (text: string) => out.write(`${text}\n`);
  const timer = setInterval(tick, live ? redrawMs : 1000);
  timer.unref();

  function tick(): void {
    if (live) return void line?.draw(liveText(progress, waitingFor(), now(), width(), styles));
    const longest = Math.max(0, ...waitingFor().map(({ seconds }) => seconds));
    if (longest < saidWaitSeconds) sayWaitAfter = saidWaitSeconds;
    if (longest < sayWaitAfter) return;
    sayWaitAfter = longest * 2;
    const wait = waitingFor().find(({ seconds }) => seconds >= longest);
    if (wait) say(`waiting for ${printable(wait.what)} for ${formatSeconds(wait.seconds)}`);
  }

  function startLine(): void {
    if (live && !ended) line ??= liveLine([out, ...others]);
  }

  function stop(): void {
    clearInterval(timer);
    line?.end();
    line = undefined;
  }

  return {
    event(event) {
      const previousReward = progress.rewards.at(-1);
      const repeated = event.type === "setup-status" && event.text === progress.phase;
      advance(progress, event, now());
      if (event.type === "run-end") {
        ended = true;
        stop();
        for (const text of [...summary(progress, now(), live ? width() : 80, styles), ...lastWords(event)]) say(text);
        return;
      }
      startLine();
      const text = repeated || (live && event.type === "setup-status") ? null : shown(event, previousReward);
      if (text !== null) say(text);
      const estimate = estimated(event);
      if (estimate !== undefined) say(styles.dim(estimate));
      if (live && (text !== null || estimate !== undefined)) tick();
    },
    async close() {
      stop();
    },
  };

  /** Said twice in a long run: by the first rollouts, and by the first step. */
  function estimated(event: RunEvent): string | undefined {
    const { totalSteps, stepsHere, done, total } = progress;
    const byStep = event.type === "step-end" && stepsHere === 1;
    const byRollouts = event.type === "rollout-progress" && stepsHere === 0 && !estimatedByRollouts;
    const left = byStep || byRollouts ? timeLeft(progress, now()) : undefined;
    if (left === undefined) return undefined;
    estimatedByRollouts = true;
    const steps = `${formatCount(totalSteps - progress.stepsDone)} steps`;
    const basis = byStep ? "the first step" : `the first ${formatCount(done)} of ${formatCount(total)} rollouts`;
    return left.seconds < shortRunSeconds
      ? undefined
      : `about ${formatSeconds(left.seconds)} for ${steps}, estimated from ${basis}`;
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

/** A run that is done needs no word for it; one that is not says why and where it lies. */
function lastWords(event: Extract<RunEvent, { type: "run-end" }>): readonly string[] {
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
