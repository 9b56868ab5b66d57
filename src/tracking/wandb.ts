/**
 * The subscriber for Weights & Biases: hands the figures to a sidecar program that uses its official SDK (the messages
 * are described in worker/wandb_sidecar.py). Does not know what runs the sidecar: it is started by a function given.
 */
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { UserError } from "../errors.ts";
import type { Metrics, Subscriber } from "./events.ts";
import { toJson } from "./json-lines.ts";

/** The part of a child process that is used. Its standard error belongs into a log. */
export interface SidecarProcess {
  stdin: Writable;
  stdout: Readable;
  kill(signal?: NodeJS.Signals): boolean;
  once(event: "exit", listener: (code: number | null, signal: NodeJS.Signals | null) => void): unknown;
  once(event: "error", listener: (error: Error) => void): unknown;
}

export interface WandbOptions {
  /** Starts the sidecar program. */
  start: () => Promise<SidecarProcess>;
  /** The command that installs the SDK for it, shown when it is missing. */
  installCommand: string;
  /** Team or user; null is the account's own. */
  entity: string | null;
  project: string;
  name: string;
  /** The same id continues the same run, so that a resumed run stays one: the run folder's name. */
  id: string;
  /** The resolved configuration. */
  config: unknown;
  /** Where the SDK keeps its own files, in a subfolder `wandb`. */
  directory: string;
  /** Undefined: by the environment's WANDB_MODE, else online. */
  mode?: "online" | "offline" | "disabled";
  /** Told when figures get lost: the sidecar died, or did not finish in time. The training goes on. */
  onWarning: (text: string) => void;
  /** Seconds to wait for the service to accept the run. */
  startSeconds?: number;
  /** Seconds to wait at the end until all has been sent. */
  finishSeconds?: number;
}

/** What the sidecar says. */
type Answer =
  | { event: "ready"; mode: string; url: string | null; directory: string }
  | { event: "finished" }
  | { event: "error"; kind: "missing" | "login" | "failed"; message: string };

/**
 * Opens the run before training begins.
 * @throws UserError when the SDK is missing, nobody is logged in, or the service does not answer
 */
export async function wandbSubscriber(options: WandbOptions): Promise<Subscriber> {
  const { entity, project, name, config, directory, mode, onWarning, startSeconds = 60, finishSeconds = 60 } = options;
  const sidecar = talkTo(await options.start());
  // Theirs are of letters, digits, - and _, and 64 long; the time at the end of a folder's name tells runs apart.
  const id = options.id.replace(/[^\w-]/g, "-").slice(-64);
  const init = { op: "init", entity, project, name, id, config, directory, mode, timeout_seconds: startSeconds };
  sidecar.send(init);
  // The SDK has a time limit of its own, with a better message; this one is for a sidecar that hangs.
  const answer = await sidecar.answer(startSeconds * 2 + 15);
  if (answer?.event !== "ready") {
    // Its output may end a moment before the process does.
    if (answer === undefined) await Promise.race([sidecar.ended, sleep(500)]);
    sidecar.kill();
    throw refusal(answer, sidecar.death(), options);
  }
  let finishing = false;
  let exitCode = 1;
  void sidecar.ended.then((why) => {
    if (!finishing)
      onWarning(`Weights & Biases records no more: its sidecar ended (${why}); metrics.jsonl has everything`);
  });
  const log = (step: number, metrics: Metrics) => sidecar.send({ op: "log", step, metrics });
  return {
    event(event) {
      if (event.type === "step-end" || event.type === "validation-end") log(event.step, event.metrics);
      if (event.type === "samples") {
        const [columns, data] = [Object.keys(event.rows[0] ?? {}), event.rows.map((row) => Object.values(row))];
        sidecar.send({ op: "table", step: event.step, name: `samples/${event.kind}`, columns, data });
      }
      if (event.type === "run-end") exitCode = event.reason === "failed" ? 1 : 0;
    },
    async close() {
      finishing = true;
      if (sidecar.death() !== undefined) return;
      sidecar.send({ op: "finish", exit_code: exitCode });
      if ((await sidecar.answer(finishSeconds))?.event === "finished") return;
      sidecar.kill();
      onWarning(
        `Weights & Biases had not sent everything after ${finishSeconds} s; send the rest: wandb sync ${answer.directory}`,
      );
    },
  };
}

interface Sidecar {
  send(message: object): void;
  /** What it says next; undefined when it ends, or the time is up, first. */
  answer(seconds: number): Promise<Answer | undefined>;
  /** Resolves when the process is gone: why. */
  readonly ended: Promise<string>;
  /** Why it is gone; undefined while it lives. */
  death(): string | undefined;
  kill(): void;
}

function talkTo(child: SidecarProcess): Sidecar {
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  let death: string | undefined;
  // A write to a sidecar that has just died fails here; `ended` says so.
  child.stdin.on("error", () => {});
  const ended = new Promise<string>((resolve) => {
    child.once("exit", (code, signal) => resolve(signal === null ? `exit code ${code}` : signal));
    child.once("error", (error) => resolve(error.message));
  });
  const kill = () => void child.kill("SIGKILL");
  process.on("exit", kill);
  void ended.then((why) => {
    death = why;
    process.off("exit", kill);
  });
  return {
    send(message) {
      if (death === undefined) child.stdin.write(`${toJson(message)}\n`);
    },
    async answer(seconds) {
      const abort = new AbortController();
      const late = sleep(seconds * 1000, undefined, { signal: abort.signal }).catch(() => undefined);
      const line = await Promise.race([lines.next(), late]);
      abort.abort();
      return line === undefined || line.done ? undefined : (JSON.parse(line.value) as Answer);
    },
    ended,
    death: () => death,
    kill,
  };
}

function refusal(answer: Answer | undefined, death: string | undefined, options: WandbOptions): UserError {
  const offline = "WANDB_MODE=offline records without it";
  if (answer?.event === "error" && answer.kind === "missing") {
    return new UserError(`rllm.trainer.logger names wandb, but its SDK is not there: ${answer.message}`, {
      hint: `install it: ${options.installCommand}`,
    });
  }
  if (answer?.event === "error" && answer.kind === "login") {
    return new UserError(`Weights & Biases does not know who you are: ${answer.message}`, {
      hint: `set WANDB_API_KEY to your key, or record without an account: WANDB_MODE=offline`,
    });
  }
  const why =
    answer?.event === "error" ? answer.message : death === undefined ? "no answer" : `its sidecar ended: ${death}`;
  return new UserError(`Weights & Biases did not accept the run: ${why}`, { hint: offline });
}
