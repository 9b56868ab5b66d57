/** A program that stays and answers requests: one JSON object per line on its standard input and output. */
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { RunError } from "./errors.ts";
import { guardGroup } from "./processes.ts";

/** The program answered with an error. */
export class AnswerError extends Error {
  override name = "AnswerError";
  /** The name of the error's class there. */
  readonly kind: string;

  constructor(message: string, kind: string) {
    super(message);
    this.kind = kind;
  }
}

export interface Resident {
  readonly pid: number;
  /**
   * Sends `{id, ...request}`, and `{id, cancel: true}` when aborted. The answer is `{id, result}` or `{id, error, kind}`.
   * @param onReport receives what the program sends before the answer
   * @throws AnswerError; RunError if the program ended
   */
  ask<Result>(request: object, signal: AbortSignal, onReport?: (report: Report) => void): Promise<Result>;
}

export type Report = Readonly<Record<string, unknown>>;

interface Pending {
  onReport(report: Report): void;
  resolve(result: unknown): void;
  reject(error: unknown): void;
}

/** Lines of standard error that a failure quotes. */
const keptLines = 15;

/**
 * Starts the program. It does not keep this process alive while it is idle, and ends with it.
 * @param what its name in messages
 * @param onEnd called when it has ended
 */
export async function openResident(
  what: string,
  [program, ...args]: readonly [string, ...string[]],
  env: NodeJS.ProcessEnv,
  onEnd: () => void,
): Promise<Resident> {
  const child = spawn(program, args, { stdio: "pipe", detached: true, env });
  await once(child, "spawn").catch((cause: Error) => {
    throw new RunError(`${what} cannot be started: ${cause.message}`, { cause });
  });
  const pid = child.pid ?? 0;
  const release = guardGroup(pid);
  const pending = new Map<number, Pending>();
  const lastLines: string[] = [];
  let ids = 0;
  child.stdin.on("error", () => {});
  createInterface({ input: child.stderr }).on("line", (line) => {
    if (lastLines.push(line) > keptLines) lastLines.shift();
  });
  createInterface({ input: child.stdout }).on("line", (line) => {
    const { id, ...answer } = JSON.parse(line) as { id: number; result?: unknown; error?: string; kind?: string };
    const asked = pending.get(id);
    if (!("result" in answer || "error" in answer)) return asked?.onReport(answer);
    pending.delete(id);
    keepAlive(child, pending.size > 0);
    if (answer.error === undefined) asked?.resolve(answer.result);
    else asked?.reject(new AnswerError(answer.error, answer.kind ?? ""));
  });
  // What it started would go on, and its open outputs would delay "close".
  const kill = () => killGroup(pid);
  child.once("exit", kill);
  // Before others remove what it has made.
  process.prependOnceListener("exit", kill);
  let ended: RunError | undefined;
  child.once("close", (code, signal) => {
    release();
    process.off("exit", kill);
    const said = lastLines.map((line) => `\n  ${line}`).join("");
    ended = new RunError(`${what} ended ${signal ? `by ${signal}` : `with exit code ${code}`}${said}`);
    for (const { reject } of pending.values()) reject(ended);
    pending.clear();
    onEnd();
  });
  keepAlive(child, false);
  const send = (message: object) => child.stdin.write(`${JSON.stringify(message)}\n`);
  return {
    pid,
    ask: <Result>(request: object, signal: AbortSignal, onReport = (_report: Report) => {}) =>
      new Promise<Result>((resolve, reject) => {
        if (ended) return reject(ended);
        const id = ids++;
        const cancel = () => void send({ id, cancel: true });
        const settle = <Value>(finish: (value: Value) => void) => {
          return (value: Value) => {
            signal.removeEventListener("abort", cancel);
            finish(value);
          };
        };
        pending.set(id, { onReport, resolve: settle(resolve as (result: unknown) => void), reject: settle(reject) });
        keepAlive(child, true);
        signal.addEventListener("abort", cancel, { once: true });
        send({ id, ...request });
        if (signal.aborted) cancel();
      }),
  };
}

function killGroup(group: number): void {
  try {
    process.kill(-group, "SIGKILL");
  } catch (error) {
    // ESRCH: nothing of it is left.
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

function keepAlive(child: ChildProcessWithoutNullStreams, alive: boolean): void {
  const streams = [child.stdin, child.stdout, child.stderr] as unknown as Record<"ref" | "unref", () => void>[];
  for (const handle of [child, ...streams]) handle[alive ? "ref" : "unref"]();
}
