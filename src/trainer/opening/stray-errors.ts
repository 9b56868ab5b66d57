/**
 * Errors that nothing awaits: rejections without a handler, throws in timers and event listeners, and `process.exit`
 * in the user's code. Those of a rollout fail that rollout; the others stop the run after its step.
 */
import { relative } from "node:path";
import { RunError } from "../../errors.ts";
import { ambientCalls } from "../../rollout/attempt/ambient-calls.ts";
import { isThrownByHone, userFrames } from "../../stack-frames.ts";
import { summarizeWarnings } from "../rollouts/failing-rollouts.ts";

export interface StrayErrors {
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
export function watchStrayErrors(warn: (text: string) => void, folder: string | undefined): StrayErrors {
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
