/** The resident process in which Harbor runs trials: `worker/hone_harbor/bridge.py`, one for each process of Hone. */
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { RunError } from "../errors.ts";
import { guardGroup } from "../processes/group-guard.ts";
import { prepareEnvironment } from "../python/prepare.ts";

/** What Harbor reports of a trial. */
export interface TrialResult {
  verifier_result: { rewards: Record<string, number> | null } | null;
  exception_info: { exception_type: string; exception_message: string } | null;
  failure_cause: string | null;
  reward_valid: boolean;
}

export type TrialEvent = "environment-start" | "agent-start" | "agent-end" | "verification-start";

interface TrialRequest {
  /** Harbor's TrialConfig. */
  trial: Record<string, unknown>;
  /** End all processes of the agent before the verifier starts. After a time-out they always end. */
  guard: boolean;
  /** The agent's program is already in the container. */
  mounted_agent: boolean;
}

export interface TrialListener {
  event(event: TrialEvent): void;
  /** Output of the agent's set-up, the agent, or the verifier. */
  log(phase: string, text: string): void;
}

/** Harbor raised an error before or outside of a trial. */
export class TrialError extends Error {
  override name = "TrialError";
  readonly kind: string;

  constructor(message: string, kind: string) {
    super(message);
    this.kind = kind;
  }
}

export interface Bridge {
  readonly pid: number;
  /** @throws TrialError; RunError if the process ended */
  run(request: TrialRequest, listener: TrialListener, signal: AbortSignal): Promise<TrialResult>;
}

interface Pending {
  listener: TrialListener;
  resolve(result: TrialResult): void;
  reject(error: unknown): void;
}

const script = fileURLToPath(new URL("../../worker/hone_harbor/bridge.py", import.meta.url));

let current: Promise<Bridge> | undefined;

/** Starts the bridge, or returns the running one. It does not keep this process alive, and ends with it. */
export function openBridge(): Promise<Bridge> {
  current ??= start().catch((error: unknown) => {
    current = undefined;
    throw error;
  });
  return current;
}

const keptLines = 15;

async function start(): Promise<Bridge> {
  const python = await prepareEnvironment("harbor");
  const child = spawn(python, [script], { stdio: "pipe", detached: true });
  await once(child, "spawn").catch((cause: Error) => {
    throw new RunError(`Harbor's bridge cannot be started: ${cause.message}`, { cause });
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
    const { id, event, log, phase = "", result, error, kind = "" } = JSON.parse(line) as Message;
    const trial = id === undefined ? undefined : pending.get(id);
    if (trial === undefined || id === undefined) return;
    if (event) trial.listener.event(event);
    if (log !== undefined) trial.listener.log(phase, log);
    if (result === undefined && error === undefined) return;
    pending.delete(id);
    keepAlive(child, pending.size > 0);
    if (result) trial.resolve(result);
    else trial.reject(new TrialError(error ?? "", kind));
  });
  child.once("close", (code, signal) => {
    release();
    current = undefined;
    const said = lastLines.map((line) => `\n  ${line}`).join("");
    for (const { reject } of pending.values()) {
      reject(new RunError(`Harbor's bridge ended ${signal ? `by ${signal}` : `with exit code ${code}`}${said}`));
    }
    pending.clear();
  });
  keepAlive(child, false);
  const send = (message: object) => child.stdin.write(`${JSON.stringify(message)}\n`);
  return {
    pid,
    run: (request, listener, signal) =>
      new Promise((resolve, reject) => {
        const id = ids++;
        const cancel = () => void send({ id, cancel: true });
        const end = () => signal.removeEventListener("abort", cancel);
        pending.set(id, {
          listener,
          resolve(result) {
            end();
            resolve(result);
          },
          reject(error) {
            end();
            reject(error);
          },
        });
        keepAlive(child, true);
        signal.addEventListener("abort", cancel, { once: true });
        send({ id, ...request });
        if (signal.aborted) cancel();
      }),
  };
}

/** An idle bridge does not keep this process alive. */
function keepAlive(child: ChildProcessWithoutNullStreams, alive: boolean): void {
  const streams = [child.stdin, child.stdout, child.stderr] as unknown as Record<"ref" | "unref", () => void>[];
  for (const handle of [child, ...streams]) handle[alive ? "ref" : "unref"]();
}

interface Message {
  id?: number;
  event?: TrialEvent;
  log?: string;
  phase?: string;
  result?: TrialResult;
  error?: string;
  kind?: string;
}
