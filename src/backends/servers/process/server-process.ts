/** Starts, watches and stops an inference server. */
import { randomUUID } from "node:crypto";
import { relative } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { RunError } from "../../../errors.ts";
import { type Death, describeDeath } from "../../../processes/describe-death.ts";
import { freePort } from "../../../processes/free-port.ts";
import { guardGroup } from "../../../processes/group-guard.ts";
import { startProcess } from "../../../processes/start-process.ts";
import { EngineDied } from "../../engine-died.ts";
import { type Launch, type Place, startSeconds } from "./launch.ts";
import { lastMessage, readEnd, remedyOf, type ServerEnd } from "./server-log.ts";

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
