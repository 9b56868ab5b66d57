/**
 * The subscriber for Weights & Biases, MLflow and Trackio. It passes metrics to a sidecar program that uses the official
 * client (see worker/tracking_sidecar.py for the messages).
 */
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { UserError } from "../base/errors.ts";
import type { Subscriber } from "./events.ts";
import { toJson } from "./json-lines.ts";
import { histograms } from "./plots.ts";

interface Client {
  title: string;
  loginHint: string;
  /** If the service does not accept the run. */
  failedHint: string;
  /** How to send what is left, after the sidecar was stopped. */
  sendRest: (directory: string) => string;
}

const trackioHint = "run `hf auth login` or set HF_TOKEN; without TRACKIO_SPACE_ID Trackio records on this machine";

/** The services whose official Python client worker/tracking_sidecar.py runs. */
const clients = {
  wandb: {
    title: "Weights & Biases",
    loginHint: "set WANDB_API_KEY to your key, or record without an account: WANDB_MODE=offline",
    failedHint: "WANDB_MODE=offline records without the service",
    sendRest: (directory) => `send the rest: wandb sync ${directory}`,
  },
  mlflow: {
    title: "MLflow",
    loginHint: "set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    failedHint: "check MLFLOW_TRACKING_URI; without it MLflow records into mlflow.db in the working directory",
    sendRest: () => "metrics.jsonl has everything",
  },
  trackio: {
    title: "Trackio",
    loginHint: trackioHint,
    failedHint: trackioHint,
    sendRest: () => "metrics.jsonl has everything",
  },
} satisfies Record<string, Client>;

export type ClientName = keyof typeof clients;

/** The part of a child process that is used here. The caller sends its standard error to a log. */
export interface SidecarProcess {
  stdin: Writable;
  stdout: Readable;
  kill(signal?: NodeJS.Signals): boolean;
  once(event: "exit", listener: (code: number | null, signal: NodeJS.Signals | null) => void): unknown;
  once(event: "error", listener: (error: Error) => void): unknown;
}

interface SidecarLoggerOptions {
  client: ClientName;
  /** Starts the sidecar program. */
  start: () => Promise<SidecarProcess>;
  /** Shown if the client is missing. */
  installCommand: string;
  /** Team or user in Weights & Biases; null: the account's own. */
  entity: string | null;
  project: string;
  name: string;
  /** The run folder's name. A resumed run has the same id and so continues the same run. */
  id: string;
  /** The resolved configuration. */
  config: unknown;
  /** The wandb client keeps its own files in its subfolder `wandb`. */
  directory: string;
  /** How Weights & Biases records. Default: the environment's WANDB_MODE, else online. */
  mode?: "online" | "offline" | "disabled";
  /** Called if metrics are lost because the sidecar ended or did not finish in time. The training continues. */
  onWarning: (text: string) => void;
  /** Seconds to wait until the service accepts the run. */
  startSeconds?: number;
  /** Seconds to wait at the end until everything is sent. */
  finishSeconds?: number;
}

type Answer =
  | { event: "ready"; mode: string; url: string | null; directory: string }
  | { event: "finished" }
  | { event: "error"; kind: "missing" | "login" | "failed"; message: string };

/**
 * Opens the service's run before training begins.
 * @throws UserError when the client or the login is missing, or the service does not answer
 */
export async function sidecarLogger(options: SidecarLoggerOptions): Promise<Subscriber> {
  const { entity, project, name, config, directory, mode, onWarning, startSeconds = 60, finishSeconds = 60 } = options;
  const { title, sendRest } = clients[options.client];
  const sidecar = talkTo(await options.start());
  // W&B allows 64 letters, digits, - and _. The time at the end of a folder's name distinguishes runs.
  const id = options.id.replace(/[^\w-]/g, "-").slice(-64);
  sidecar.send({ op: "init", entity, project, name, id, config, directory, mode, timeout_seconds: startSeconds });
  // The client has its own time limit, with a better message. This longer one is for a sidecar that hangs.
  const answer = await sidecar.answer(startSeconds * 2 + 15);
  if (answer?.event !== "ready") {
    // Its output may end a moment before the process does.
    if (answer === undefined) await Promise.race([sidecar.ended, sleep(500)]);
    sidecar.kill();
    throw refusal(answer, sidecar.endReason(), options);
  }
  let isFinishing = false;
  let exitCode = 1;
  void sidecar.ended.then((why) => {
    if (!isFinishing) {
      onWarning(`${title} stopped recording: its sidecar ended (${why}); metrics.jsonl has everything`);
    }
  });
  return {
    event(event) {
      if (event.type === "step-end" || event.type === "validation-end") {
        sidecar.send({ op: "log", step: event.step, metrics: event.metrics });
      } else if (event.type === "samples") {
        const columns = Object.keys(event.rows[0] ?? {});
        const data = event.rows.map((row) => Object.values(row));
        sidecar.send({ op: "table", step: event.step, name: `samples/${event.kind}`, columns, data });
      } else if (event.type === "distributions") {
        for (const [name, { edges, counts }] of histograms(event.values)) {
          sidecar.send({ op: "histogram", step: event.step, name: `distribution/${name}`, edges, counts });
        }
      } else if (event.type === "plot") {
        sidecar.send({ op: "image", step: event.step, name: `plots/${event.name}`, file: resolve(event.file) });
      } else if (event.type === "run-end") {
        exitCode = event.reason === "failed" ? 1 : 0;
      }
    },
    async close() {
      isFinishing = true;
      if (sidecar.endReason() !== undefined) return;
      sidecar.send({ op: "finish", exit_code: exitCode });
      if ((await sidecar.answer(finishSeconds))?.event === "finished") return;
      sidecar.kill();
      onWarning(`${title} had not recorded everything after ${finishSeconds} s; ${sendRest(answer.directory)}`);
    },
  };
}

function talkTo(child: SidecarProcess) {
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  let endReason: string | undefined;
  // A write to a sidecar that has just ended fails here; `ended` reports it.
  child.stdin.on("error", () => {});
  const ended = new Promise<string>((resolve) => {
    child.once("exit", (code, signal) => resolve(signal === null ? `exit code ${code}` : signal));
    child.once("error", (error) => resolve(error.message));
  });
  const kill = () => void child.kill("SIGKILL");
  process.on("exit", kill);
  void ended.then((why) => {
    endReason = why;
    process.off("exit", kill);
  });
  return {
    send(message: object): void {
      if (endReason === undefined) child.stdin.write(`${toJson(message)}\n`);
    },
    /** The next message; undefined if the sidecar ends or the time is up before it. */
    async answer(seconds: number): Promise<Answer | undefined> {
      const abort = new AbortController();
      const late = sleep(seconds * 1000, undefined, { signal: abort.signal }).catch(() => undefined);
      const line = await Promise.race([lines.next(), late]);
      abort.abort();
      return line === undefined || line.done ? undefined : (JSON.parse(line.value) as Answer);
    },
    /** Resolves with the reason when the process has ended. */
    ended,
    /** The reason; undefined while the process runs. */
    endReason: () => endReason,
    kill,
  };
}

function refusal(answer: Answer | undefined, endReason: string | undefined, options: SidecarLoggerOptions): UserError {
  const { title, loginHint, failedHint } = clients[options.client];
  const { kind, message } = answer?.event === "error" ? answer : {};
  if (kind === "missing") {
    const { client } = options;
    return new UserError(`rllm.trainer.logger includes ${client}, but its package is not installed: ${message}`, {
      hint: `install it: ${options.installCommand}`,
    });
  }
  if (kind === "login") {
    return new UserError(`${title} login failed: ${message}`, { hint: loginHint });
  }
  const why = message ?? (endReason === undefined ? "it did not answer" : `its sidecar ended: ${endReason}`);
  return new UserError(`${title} did not accept the run: ${why}`, { hint: failedHint });
}
