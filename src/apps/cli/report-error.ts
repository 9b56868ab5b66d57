/**
 * What the process prints and does at its end: errors with their fix, a parent that goes away, signals, an opened
 * browser.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { Help } from "commander";
import { HoneError, isThrownByHone, readable, userFrames } from "../../base/errors.ts";
import { printable, printableLines } from "../../base/text.ts";
import { cutText, errColors } from "../../tracking/console-lines.ts";

// Prints errors: the message, what to do, and a stack if the error is unexpected.

const say = (...words: string[]) => process.stderr.write(`${words.join(" ")}\n`);
const sayError = (text: string) => say(errColors.red("error:"), printableLines(text));
const sayHelp = (text: string) => say(errColors.cyan(" help:"), printableLines(text));

/** Prints an error to standard error. Returns the exit code: 2 for a user's mistake, 1 for a failure. */
export function reportError(thrown: unknown): number {
  const error = readable(thrown);
  if (error instanceof HoneError) {
    sayError(error.message);
    if (error.details) say(printableLines(error.details));
    if (error.hint) sayHelp(error.hint);
    return error.exitCode;
  }
  if (!(error instanceof Error)) {
    sayError(`a value that is not an Error was thrown: ${String(error)}`);
    sayHelp("throw an Error instead: its stack shows where it happened");
    return 1;
  }
  const frames = userFrames(error.stack);
  if (frames !== "" && !isThrownByHone(error.stack)) {
    sayError(`${error.name}: ${error.message}\n${frames}`);
    sayHelp("the first line of the stack shows where this was thrown");
    return 1;
  }
  sayError(error.stack ?? error.message);
  sayHelp("this is a bug in Hone; please report it with the lines above");
  return 1;
}

// A child process of this command line that stops when its parent ends, even by `kill -9`.

const marker = "HONE_STOP_WITH_PARENT";

/** @param args the script of this command line and its words */
export function spawnWithParent(args: readonly string[]): ChildProcess {
  return spawn(process.execPath, [...process.execArgv, ...args], {
    // The channel closes when this process ends.
    stdio: ["inherit", "inherit", "inherit", "ipc"],
    env: { ...process.env, [marker]: "1" },
  });
}

/** In the child: whether this process ends after its parent. */
export const isBesideParent = (): boolean => process.env[marker] !== undefined && process.channel !== undefined;

/** In the child: asks this process to stop, as SIGTERM does, when the channel to its parent closes. */
export function stopWithParent(): void {
  if (!isBesideParent()) return;
  process.once("disconnect", () => process.kill(process.pid, "SIGTERM"));
  process.channel?.unref();
}

/**
 * Resolves when the process is asked to stop: by Ctrl-C, or by SIGTERM.
 * @param ignoreInterrupt continues after Ctrl-C, which a terminal sends to a run and to the processes beside it
 */
export function untilSignal({ ignoreInterrupt = false } = {}): Promise<void> {
  return new Promise((resolve) => {
    process.once("SIGTERM", () => resolve());
    if (ignoreInterrupt) process.on("SIGINT", () => {});
    else process.once("SIGINT", () => resolve());
  });
}

// Opens an address in the user's browser, where there is one.

/** Does nothing on a machine without a screen. A browser that cannot be started is not an error. */
export function openInBrowser(url: string): void {
  const { platform, env } = process;
  const hasScreen = platform !== "linux" || env.DISPLAY !== undefined || env.WAYLAND_DISPLAY !== undefined;
  if (!hasScreen || env.SSH_CONNECTION !== undefined) return;
  const opener: [string, ...string[]] =
    platform === "darwin" ? ["open"] : platform === "win32" ? ["cmd", "/c", "start", ""] : ["xdg-open"];
  const [program, ...before] = opener;
  const child = spawn(program, [...before, url], { stdio: "ignore", detached: true });
  child.on("error", () => {});
  child.unref();
}

/** On a terminal, wraps text that begins in this column at spaces; further lines begin in the same column. */
export function wrapped(text: string, column: number): string {
  if (!process.stdout.isTTY) return text;
  return new Help().boxWrap(text, (process.stdout.columns || 80) - column).replaceAll("\n", `\n${" ".repeat(column)}`);
}

/** Shows the progress of a slow start on standard error: one redrawn line on a terminal, else plain lines. */
export function showStatus(): { say(text: string): void; end(): void } {
  const live = process.stderr.isTTY === true;
  let shown = false;
  let last = "";
  return {
    say(given) {
      const text = printable(given);
      if (text === last) return;
      last = text;
      shown = true;
      process.stderr.write(
        live ? `\r\x1b[2K${cutText(text, Math.max(20, (process.stderr.columns || 80) - 1))}` : `${text}\n`,
      );
    },
    end() {
      if (live && shown) process.stderr.write("\r\x1b[2K");
      shown = false;
    },
  };
}
