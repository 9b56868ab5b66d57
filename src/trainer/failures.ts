/**
 * What a run does when rollouts fail: whose failure it is, when an outage is waited for, when the run ends, and what
 * happens to errors that nothing awaited.
 */
import { relative } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { isThrownByHone, RunError, UserError, userFrames } from "../base/errors.ts";
import { withoutFault } from "../rollout/outcome.ts";
import { ambientCalls } from "../rollout/rollouts.ts";
import type { RunEvent } from "../tracking/events.ts";
import type { Episode, Failure } from "../trajectories/types.ts";

// Decides again whose failures those after faulty replies are, once all rollouts of a step have ended. A single
// rollout cannot tell a program that fails because its model's reply was cut off from one that always fails.

/**
 * A failure after a faulty reply is the agent's if no rollout with a sound reply ended well, and one of them failed for
 * the same cause.
 */
export function attributeFailure(episodes: readonly Episode[], warn: (text: string) => void): Episode[] {
  const sound = episodes.filter(({ failure }) => failure?.kind !== "model");
  const same = new Set(sound.flatMap(({ failure }) => (failure?.kind === "agent" ? causeOf(failure) : [])));
  if (sound.some(({ failure }) => failure === undefined)) return [...episodes];
  let count = 0;
  const judged = episodes.map((episode): Episode => {
    const { failure } = episode;
    if (failure?.kind !== "model" || !same.has(causeOf(failure))) return episode;
    count++;
    return { ...episode, termination: "error", failure: { ...failure, kind: "agent" } };
  });
  if (count > 0) {
    warn(
      `${count} rollouts that failed after a faulty reply of the model count as failures of the agent: it fails in the same way after sound replies`,
    );
  }
  return judged;
}

/**
 * Equal for failures with one cause: errors of one class from the same line of the user's code, whose messages may quote the
 * reply, or messages that differ only in numbers, such as ports and times.
 */
export function causeOf({ boundary, message, stack }: Failure): string {
  const said = withoutFault(message);
  const frames = isThrownByHone(stack) ? "" : userFrames(stack);
  return `${boundary}: ${frames === "" ? said.replace(/\d+/g, "#") : `${said.split(":", 1)} ${frames}`}`;
}

// Reports rollouts that fail, and stops a run that has too many: without rewards it can neither train nor measure.

/** Where episodes come from. */
export interface EpisodeSource {
  mode: "train" | "val";
  step: number;
}

/** An outage of this length, e.g. of a reward server, does not end a run. */
const outageSeconds = 60;
/** Doubled after each attempt. */
const firstPauseSeconds = 5;
/** A run ends after this many steps in a row in which more than half of the rollouts failed. */
const maxFailingSteps = 3;

export interface OutageContext {
  signal: AbortSignal;
  emit(event: RunEvent): void;
  stopRequested(): boolean;
  /** Keeps the episodes that a run fails with. */
  keep(source: EpisodeSource, episodes: readonly Episode[]): void;
}

export interface Outage {
  /**
   * Returns false if any of these rollouts succeeded. Otherwise waits and returns true, so that the caller can try again.
   * @throws RunError if they have failed for longer than an outage lasts
   */
  retry(source: EpisodeSource, episodes: readonly Episode[]): Promise<boolean>;
}

/** @param stops false: does not throw when the outage is too long, because the caller reports the failures */
export function watchOutage({ signal, emit, stopRequested, keep }: OutageContext, stops = true): Outage {
  let seconds = 0;
  let pause = firstPauseSeconds;
  return {
    async retry(source, episodes) {
      const { mode, step } = source;
      const failed = episodes.filter(isLost);
      if (episodes.length === 0 || failed.length < episodes.length) {
        seconds = 0;
        pause = firstPauseSeconds;
        return false;
      }
      const what =
        mode === "train" ? `step ${step}` : step === 0 ? "the validation" : `the validation after step ${step}`;
      const text = `all ${failed.length} rollouts of ${what} failed, ${describe(failed)}`;
      seconds += failed.reduce((least, episode) => Math.min(least, episode.seconds), Number.POSITIVE_INFINITY);
      if (seconds >= outageSeconds || !mayPass(failed) || stopRequested()) {
        if (!stops) return false;
        keep(source, episodes);
        throw failedRun(text, failed);
      }
      emit({ type: "warning", text: `${text}; trying again in ${pause} s` });
      for (let left = pause; left > 0 && !stopRequested(); left--) await sleep(1000, undefined, { signal });
      seconds += pause;
      pause *= 2;
      return true;
    },
  };
}

/**
 * A step counts as failing if more than half of its rollouts have no reward, or if all of them threw and
 * `rllm.workflow.on_agent_error` gave them a reward. Replies that an agent could not use do not count: a model may learn.
 *
 * @param before failing steps in a row before this one
 * @returns failing steps in a row
 * @throws RunError if there are too many, or all rollouts of the last step failed
 */
export function countFailingSteps(
  before: number,
  episodes: readonly Episode[],
  { step, isLast }: { step: number; isLast: boolean },
): number {
  const failed = episodes.filter(({ failure }) => failure !== undefined && failure.kind !== "model");
  const allFailed = failed.length === episodes.length && episodes.length > 0;
  const failing = allFailed || failed.filter(isLost).length > episodes.length / 2;
  const count = failing ? before + 1 : 0;
  if (count < maxFailingSteps && !(allFailed && isLast)) return count;
  const share = `${failed.length} of ${episodes.length} in step ${step}`;
  throw failedRun(`most rollouts failed, ${count} steps in a row (${share}), ${describe(failed)}`, failed);
}

/** Failed, and with no reward that could be trained on. */
const isLost = ({ failure, trajectories }: Episode) =>
  failure !== undefined && trajectories.every(({ reward }) => reward === null);

/** Errors of the agent's or the reward's own code do not pass with time. */
function mayPass(failed: readonly Episode[]): boolean {
  const { failure } = mostFrequent(failed);
  return failure.boundary === "timeout" || failure.kind === "infrastructure";
}

/** The most frequent failure. */
function mostFrequent(failed: readonly Episode[]): { failure: Failure; count: number; example: Episode } {
  const found = new Map<string, { failure: Failure; count: number; example: Episode }>();
  for (const example of failed) {
    const { failure } = example;
    if (failure === undefined) continue;
    const key = causeOf(failure);
    const known = found.get(key) ?? { failure, count: 0, example };
    known.count++;
    found.set(key, known);
  }
  return [...found.values()].reduce((most, one) => (one.count > most.count ? one : most));
}

function describe(failed: readonly Episode[]): string {
  const { failure, count, example } = mostFrequent(failed);
  const frames = userFrames(failure.stack);
  const place = failure.boundary === "timeout" ? "at a time limit" : `in the ${failure.boundary.replace("_", "-")}`;
  return (
    `most often (${count} of ${failed.length}) ${place}: ${failure.message} ` +
    `(rollout ${example.rollout} of task ${example.taskId})${frames === "" ? "" : `\n${frames}`}`
  );
}

function failedRun(text: string, failed: readonly Episode[]): RunError {
  const { boundary } = mostFrequent(failed).failure;
  const fix =
    boundary === "timeout" ? "fix what hangs, or raise its time limit" : `fix the ${boundary.replace("_", "-")}`;
  return new RunError(text, { hint: `${fix}; episodes/ has every failure` });
}

/** Reports prompts that are too long. If all are, nothing can be learned or measured. */
export function checkPrompts(episodes: readonly Episode[], warn: (text: string) => void): void {
  const tooLong = episodes.filter(({ termination }) => termination === "max_prompt_length_exceeded");
  const [first] = tooLong;
  if (first === undefined) return;
  const text = `${tooLong.length} of ${episodes.length} rollouts ended because the prompt was too long; task ${first.taskId}: ${first.explanation}`;
  const hint = "raise that limit, or shorten the prompts";
  if (tooLong.length === episodes.length) throw new UserError(text, { hint });
  warn(`${text}; ${hint}`);
}

/** Reports warnings of many rollouts once per cause: the first of the run in full, the others as a count. */
export interface WarningSummary {
  /**
   * @param cause in words, e.g. the kind of failure and its message
   * @param key equal for warnings that are counted together
   */
  add(cause: string, text: string, key?: string): void;
  /** Reports the number of the others. */
  end(): void;
}

/**
 * @param where the others can be found, e.g. "the episodes of step 3 have the details"
 * @param reported keys of warnings that the run has reported in full before
 */
export function summarizeWarnings(
  warn: (text: string) => void,
  where: string,
  reported = new Set<string>(),
): WarningSummary {
  const found = new Map<string, { cause: string; more: number }>();
  return {
    add(cause, text, key = cause) {
      const isFirst = !reported.has(key);
      if (isFirst) warn(text);
      reported.add(key);
      const known = found.get(key);
      if (known !== undefined) known.more++;
      else found.set(key, { cause, more: isFirst ? 0 : 1 });
    },
    end() {
      for (const { cause, more } of found.values()) {
        if (more > 0) warn(`${more} more: ${cause} (${where})`);
      }
    },
  };
}

// Errors that nothing awaits: rejections without a handler, throws in timers and event listeners, and `process.exit`
// in the user's code. Those of a rollout fail that rollout; the others stop the run after its step.

export interface UnhandledErrors {
  /** The first one outside of rollouts, once there is one: the run saves and fails with it. */
  readonly error: RunError | undefined;
  /** Rejects when Hone itself threw: the step may never finish then. */
  readonly fatal: Promise<never>;
  dispose(): void;
}

interface Watcher {
  onError(error: unknown): void;
  onLateError(rollout: string, error: unknown): void;
  onExit(code: number): number;
}

const watchers: Watcher[] = [];
let uninstall: (() => void) | undefined;

/** @param folder the run folder; undefined when nothing is kept */
export function watchUnhandledErrors(warn: (text: string) => void, folder: string | undefined): UnhandledErrors {
  const resume = folder && `to continue, add --resume ${relative(process.cwd(), folder)} to the command`;
  let reject = (_error: unknown) => {};
  const fatal = new Promise<never>((_, rejectFatal) => {
    reject = rejectFatal;
  });
  fatal.catch(() => {});
  let first: RunError | undefined;
  const late = summarizeWarnings(warn, "in rollouts whose outcome was known");
  const watcher: Watcher = {
    onError(error) {
      if (error instanceof Error && isThrownByHone(error.stack)) return reject(error);
      const text = `code outside of any rollout failed: ${textOf(error)}`;
      if (first === undefined) warn(`${text}; stopping after this step and saving`);
      const hint = `handle the error where the stack shows it${resume ? `, then ${resume}` : ""}`;
      first ??= new RunError(text, { hint, cause: error });
    },
    onLateError(rollout, error) {
      const text = textOf(error);
      const [cause = ""] = text.split("\n", 1);
      late.add(cause, `the code of ${rollout} failed after its outcome was known: ${text}`);
    },
    onExit: (code) => endedEarly(code, resume),
  };
  watchers.push(watcher);
  uninstall ??= install();
  return {
    get error() {
      return first;
    },
    fatal,
    dispose() {
      late.end();
      watchers.splice(watchers.indexOf(watcher), 1);
      if (watchers.length > 0) return;
      uninstall?.();
      uninstall = undefined;
    },
  };
}

/** Whether an open run handles stray errors. */
export const isWatched = () => watchers.length > 0;

/** Reports that the process ends before its work is done. Returns the exit code. */
export function endedEarly(code: number, resume?: string): number {
  // The exit code of a second Ctrl-C.
  if (code === 130 || code === 143) return code;
  const [why, help] =
    code === 13
      ? ["Node had nothing left to wait for", "look for a promise that is never resolved"]
      : [`process.exit(${code}) was called`, "find the call in your code or its packages"];
  process.stderr.write(`error: the process ended before its work was done: ${why}\n`);
  process.stderr.write(` help: ${help}${resume ? `, then ${resume}` : ""}\n`);
  return 1;
}

function textOf(error: unknown): string {
  if (!(error instanceof Error)) return `a value that is not an Error: ${String(error)}`;
  return [`${error.name}: ${error.message}`, userFrames(error.stack)].filter(Boolean).join("\n");
}

function install(): () => void {
  const { exit } = process;
  const onError = (error: unknown) => {
    const rollout = ambientCalls.getStore();
    if (rollout === undefined) watchers.at(-1)?.onError(error);
    else if (!rollout.fail(error)) watchers.at(-1)?.onLateError(rollout.rollout, error);
  };
  const onExit = (code: number) => {
    process.exitCode = watchers.at(-1)?.onExit(code) ?? code;
  };
  process.exit = (code) => {
    const rollout = ambientCalls.getStore();
    if (rollout === undefined) return exit.call(process, code);
    const error = new Error(`process.exit(${code ?? ""}) was called in a rollout`);
    rollout.fail(error);
    throw error;
  };
  process.on("uncaughtException", onError);
  process.on("exit", onExit);
  return () => {
    process.exit = exit;
    process.off("uncaughtException", onError);
    process.off("exit", onExit);
  };
}
