/** The process of an inference server: starts it, reads its log, waits until it answers, and explains its end. */
import { randomUUID } from "node:crypto";
import { relative } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { RunError } from "../../base/errors.ts";
import { type Death, describeDeath, freePort, guardGroup, startProcess } from "../../base/processes.ts";
import { beginningOf } from "../../base/text.ts";
import type { Engine, Sampler } from "../engine.ts";
import { EngineDied } from "../engine-parts.ts";
import { type Launch, type Place, startSeconds } from "./launch.ts";

// Reads the log of an inference server.

/** `(EngineCore pid=17) INFO 11-22 12:00:00 [core.py:90] ` or `[2026-11-22 12:00:00 TP0] ` */
const prefix = /^(\([^)]*\) )?((DEBUG|INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[[^\]]*\] )?(\[[\d-]+ [\d:]+[^\]]*\] )?/;
const maxCharacters = 100;

/** The last message, for a progress line; empty if there is none. */
function lastMessage(lines: readonly string[]): string {
  const message = lines.at(-1)?.replace(prefix, "").trim() ?? "";
  return beginningOf(message, maxCharacters);
}

const isError = (message: string) => /^\s*([\w.]*\.)?\w*(Error|Exception)\b.*: /.test(message);
/** vLLM's executor found that a process of the model ended. Its own errors follow from this. */
const isEnd = (message: string) => /^Worker proc \S+ died unexpectedly/.test(message);
/** Errors of other processes, such as "See stack trace (above) for the root cause". */
const isConsequence = (message: string) => /\babove\b|EngineDeadError|^RuntimeError: cancelled/.test(message);

const maxCauses = 12;
/** Older errors did not end the server. */
const recentMs = 120_000;

export interface ServerEnd {
  /** Undefined if the log does not name it. */
  cause: string | undefined;
  /** The messages that name a cause, in their order. */
  errors: readonly string[];
}

/**
 * Reads each line of the log, because a failing vLLM server writes a trace for every running request: the trace of the
 * engine, which has the cause, can be far from the end.
 */
export function readEnd(now: () => number = () => performance.now()): {
  read(line: string): void;
  explain(): ServerEnd;
} {
  const seen = new Map<string, number>();
  let isEngineDead = false;
  return {
    read(line) {
      const message = line.replace(prefix, "").trim();
      if (isConsequence(message)) isEngineDead ||= message.includes("EngineDeadError");
      else if (isEnd(message) || isError(message)) {
        seen.delete(message);
        seen.set(message, now());
        if (seen.size > maxCauses) seen.delete(seen.keys().next().value!);
      }
    },
    explain() {
      const errors = [...seen].filter(([, at]) => now() - at < recentMs).map(([message]) => message);
      const cause = errors.find(isEnd) ?? errors.at(-1) ?? (isEngineDead ? engineEnded : undefined);
      return { cause, errors };
    },
  };
}

const engineEnded = "its engine process ended without an error message";

/** What to do about a cause; undefined if nothing special is known. */
function remedyOf(cause: string): "time" | "memory" | undefined {
  if (/^TimeoutError: RPC call to \S+ timed out/.test(cause)) return "time";
  return isEnd(cause) || cause === engineEnded ? "memory" : undefined;
}

// Starts, watches and stops an inference server.

export interface ServerProcessOptions {
  /** Such as "the vLLM server". */
  name: string;
  /** The Python of its environment. */
  python: string;
  launch: (place: Place) => Launch;
  logFile: string | undefined;
  /** Called with the progress of the start. */
  onStatus: (text: string) => void;
}

export interface ServerProcess {
  /** The id of the process group. */
  pid: number;
  url: string;
  apiKey: string;
  answers(): Promise<boolean>;
  /** Resolves with the reason when the server has ended, also after `stop`. */
  died: Promise<EngineDied>;
  stop(): Promise<void>;
}

const graceSeconds = 10;
const pollMs = 250;

/**
 * Starts a server on a free port of this machine and waits until it answers.
 *
 * @throws EngineDied when it ends before it answers
 * @throws RunError when it cannot be started, or does not answer
 */
export async function startServer(options: ServerProcessOptions): Promise<ServerProcess> {
  const { name, python, launch, logFile, onStatus } = options;
  // Distinguishes this server from another one that took the port first.
  const servedName = `hone-${randomUUID().slice(0, 8)}`;
  const port = await freePort();
  // Other users of this machine can connect too.
  const apiKey = randomUUID();
  const { args, env } = launch({ servedName, port, apiKey });
  onStatus(`starting ${name}${logFile === undefined ? "" : `; its log is ${relative(process.cwd(), logFile)}`}`);
  const end = readEnd();
  const server = await startProcess({
    name,
    command: python,
    args,
    env: { ...process.env, ...env },
    channel: "log",
    logFile,
    onLine: end.read,
    graceSeconds,
  });
  const release = guardGroup(server.pid);
  const died = server.ended.then((death) => {
    release();
    return serverDied(death, name, end.explain());
  });
  const url = `http://127.0.0.1:${port}`;
  const answers = () => isReady(url, apiKey, servedName);
  let reportAfter = 15;
  const begin = performance.now();
  while (!(await answers())) {
    const reason = await Promise.race([died, sleep(pollMs)]);
    if (reason) throw reason;
    const seconds = (performance.now() - begin) / 1000;
    if (seconds > startSeconds) {
      await server.stop();
      throw new RunError(`${name} does not answer after ${startSeconds / 60} minutes`, { hint: `see ${logFile}` });
    }
    if (seconds < reportAfter) continue;
    reportAfter *= 2;
    const message = lastMessage(server.lastLines);
    onStatus(`starting ${name}, ${Math.round(seconds)} s so far${message === "" ? "" : `: ${message}`}`);
  }
  return { pid: server.pid, url, apiKey, answers, died, stop: server.stop };
}

async function isReady(url: string, apiKey: string, servedName: string): Promise<boolean> {
  try {
    const headers = { authorization: `Bearer ${apiKey}` };
    const get = (path: string) => fetch(url + path, { headers, signal: AbortSignal.timeout(5000) });
    const models = await get("/v1/models");
    // A server whose engine has died still answers other requests for a moment.
    return models.ok && (await models.text()).includes(servedName) && (await get("/health")).ok;
  } catch {
    return false; // Not listening so far.
  }
}

const hints = {
  SIGKILL:
    "Lower local.sampler.memory_share (on a CPU: the environment variable VLLM_CPU_KVCACHE_SPACE, in GiB), or use a machine with more memory.",
};
const remedies = {
  time: "The model computed longer than the server's time limit. Raise local.sampler.timeout, or let fewer programs run on this machine.",
  memory: `Perhaps the memory ran out. ${hints.SIGKILL}`,
};

function serverDied(death: Death, name: string, { cause, errors }: ServerEnd): EngineDied {
  const shown = cause === undefined ? death.lastLines : errors.filter((error) => error !== cause);
  const { message, hint } = describeDeath({ ...death, lastLines: shown, cause }, { name, hints });
  const remedy = cause && remedyOf(cause);
  if (!remedy || death.signal !== null) return new EngineDied(message, { hint });
  return new EngineDied(message, { hint: `${remedies[remedy]}${death.logFile ? ` Its log: ${death.logFile}` : ""}` });
}

// Explains failures of requests to a server that Hone started by the server's end.

type Ending = Pick<ServerProcess, "answers" | "died">;

/** Milliseconds to wait for the end of a server that no longer answers. */
const defaultEndingMs = 15_000;

/** @returns why a request to the server failed: the error itself if the server still answers */
export async function explain(error: unknown, server: Ending, endingMs = defaultEndingMs): Promise<unknown> {
  if (await server.answers()) return error;
  const death = await Promise.race([server.died, sleep(endingMs, undefined, { ref: false })]);
  return death ?? hanging(error);
}

/** Creates policies whose samplers sample from the server. */
export function explainedBy(
  server: Ending,
  createPolicy: Engine["createPolicy"],
  endingMs = defaultEndingMs,
): Engine["createPolicy"] {
  const rethrow = async (error: unknown): Promise<never> => {
    throw await explain(error, server, endingMs);
  };
  const explained = (sampler: Sampler): Sampler => ({
    ...sampler,
    get version() {
      return sampler.version;
    },
    async *sample(requests, options) {
      try {
        yield* sampler.sample(requests, options);
      } catch (error) {
        await rethrow(error);
      }
    },
    load: (published) => sampler.load(published).catch(rethrow),
  });
  return async (spec) => {
    const { learner, sampler } = await createPolicy(spec).catch(rethrow);
    return { learner, sampler: explained(sampler) };
  };
}

/** The hint if a server that Hone started neither answers nor ends. */
function hanging(error: unknown): unknown {
  if (!(error instanceof RunError) || error.code !== "server_unreachable") return error;
  const { message, code } = error;
  return new RunError(message, {
    code,
    hint: "see server.log in the run folder, and continue with --resume",
    cause: error,
  });
}
