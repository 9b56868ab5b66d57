/** Agents that run elsewhere: a program that is started for each rollout, or a server that is called. */
import { type SpawnOptions, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { Agent, interceptors, request } from "undici";
import { RunError, UserError } from "../base/errors.ts";
import { answerText } from "../base/http.ts";
import { guardGroup, killMarked } from "../base/processes.ts";
import type { GatewayAccess, Outcome, Workflow } from "./types.ts";

// An agent that is a program: started for each rollout with the address of the model, and graded when it has ended.

/** How an agent's program ended. */
export interface AgentResult {
  /** What the program wrote to its standard output. */
  output: string;
  exitCode: number;
}

export interface CommandAgentOptions<Row> {
  /** The program and its arguments, without a shell. */
  command: readonly [string, ...string[]] | ((row: Row) => readonly [string, ...string[]]);
  /** What the agent gets of a row, in HONE_TASK and on its standard input. Default: the row, with its answer if it has one. */
  task?: (row: Row) => unknown;
  /** Written to its standard input. Default: `task` as one line of JSON. */
  input?: (row: Row) => string;
  /**
   * Its variables, in addition to those that locate the model, PATH, HOME and the locale. It gets no other variables of this process,
   * such as API keys.
   */
  env?: Readonly<Record<string, string>>;
  cwd?: string;
  /**
   * The reward of the run, regardless of its exit code (`batch/nonzero_exits` counts the codes other than 0). Default: the last
   * line that the program writes, a number or a JSON object with `reward`; the agent has failed if the exit code is not 0.
   */
  reward?: (row: Row, result: AgentResult) => number | Outcome | Promise<number | Outcome>;
}

/** Characters of the output that are kept: the last ones. */
const maxOutput = 4 * 2 ** 20;

/** How long a process that has left the program's group may keep its outputs open. */
const lateOutputMs = 2000;

/** Lines of standard error that a failure quotes. */
const quotedLines = 20;
/** Lines of standard error that an attempt writes to the log. */
const maxLogged = 1000;

/**
 * Runs a program for each rollout. It finds the model through OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_BASE_URL
 * and ANTHROPIC_API_KEY, which the official clients read, and its task in HONE_TASK. Its standard error goes to the run's
 * log. What it leaves running in its process group is killed when it, the rollout or the training process ends.
 *
 * @example
 * commandAgent<{ question: string; answer: string }>({
 *   command: ["python", "agent.py"],
 *   reward: (row, { output }) => Number(output.includes(row.answer)),
 * })
 */
export function commandAgent<Row>(options: CommandAgentOptions<Row>): Workflow<Row> {
  const { command, task: taskOf = (row: Row): unknown => row, reward } = options;
  const { input = (row: Row) => `${JSON.stringify(taskOf(row))}\n` } = options;
  return async (task, { gateway, signal, stage, log }) => {
    stage("agent");
    const [program, ...args] = typeof command === "function" ? command(task.row) : command;
    const marker = `HONE_AGENT=${randomUUID()}`;
    const env = {
      ...sharedEnvironment(),
      ...options.env,
      ...agentEnvironment(task.id, taskOf(task.row), gateway, marker),
    };
    const stderr = lineLog(log);
    const settings: SpawnOptions = { env, cwd: options.cwd };
    const result = await runProgram([program, ...args], settings, input(task.row), signal, stderr.push, marker);
    stderr.end();
    if (reward !== undefined) {
      stage("reward");
      const graded = await reward(task.row, result);
      return withMetric(graded, "nonzero_exits", Number(result.exitCode !== 0));
    }
    if (result.exitCode !== 0) {
      const last = stderr.last().map((line) => `\n  ${line}`);
      const said =
        last.length === 0 ? " and wrote nothing to standard error" : `; its standard error ends with${last.join("")}`;
      throw new Error(`${[program, ...args].join(" ")} ended with exit code ${result.exitCode}${said}`);
    }
    return toOutcome(lastLine(result), `the last line of ${program}'s output`);
  };
}

/** An invalid outcome is returned as it is, for the rollout to refuse. */
function withMetric(graded: number | Outcome, name: string, value: number): number | Outcome {
  const outcome = typeof graded === "number" ? { reward: graded } : graded;
  return isOutcome(outcome) ? { ...outcome, metrics: { [name]: value, ...outcome.metrics } } : outcome;
}

const isOutcome = (value: unknown): value is Outcome =>
  typeof value === "object" && value !== null && "reward" in value;

/** Gathers a stream's text into lines, logs each, and keeps the last ones. */
function lineLog(log: (line: string) => void) {
  const last: string[] = [];
  let rest = "";
  let count = 0;
  const add = (line: string) => {
    if (last.push(line) > quotedLines) last.shift();
    if (++count <= maxLogged) log(`stderr: ${line}`);
    else if (count === maxLogged + 1) log(`stderr: more than ${maxLogged} lines; the others are not logged`);
  };
  return {
    push(text: string) {
      const lines = (rest + text).split("\n");
      rest = (lines.pop() ?? "").slice(-longestLine);
      for (const line of lines) add(line.slice(0, longestLine));
    },
    end() {
      if (rest !== "") add(rest);
      rest = "";
    },
    last: () => last,
  };
}

/** In characters. */
const longestLine = 2000;

/** Variables of this process that programs need to start. */
const shared =
  /^(?:PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TMPDIR|TEMP|TMP|SYSTEMROOT|COMSPEC|PATHEXT|LD_LIBRARY_PATH)$/i;

const sharedEnvironment = () => Object.fromEntries(Object.entries(process.env).filter(([name]) => shared.test(name)));

const agentEnvironment = (
  id: string,
  task: unknown,
  gateway: GatewayAccess,
  marker: string,
): Record<string, string> => ({
  OPENAI_BASE_URL: gateway.baseURL,
  OPENAI_API_KEY: gateway.apiKey,
  ANTHROPIC_BASE_URL: gateway.anthropicBaseURL,
  ANTHROPIC_API_KEY: gateway.apiKey,
  HONE_TASK: JSON.stringify(task) ?? "null",
  HONE_TASK_ID: id,
  // Names all of its processes, also those that leave its group.
  HONE_AGENT: marker.slice("HONE_AGENT=".length),
});

/** @throws Error when it is neither a number nor an object with a reward */
function toOutcome(value: unknown, what: string): number | Outcome {
  if (typeof value === "number" || isOutcome(value)) return value;
  throw new Error(`${what} is not a number or an object with a reward: ${JSON.stringify(value)?.slice(0, 200)}`);
}

function lastLine({ output }: AgentResult): unknown {
  const line = output.trimEnd().split("\n").at(-1) ?? "";
  try {
    return JSON.parse(line);
  } catch {
    return line;
  }
}

/** @param stderr called with what the program writes to its standard error */
function runProgram(
  [program, ...args]: readonly [string, ...string[]],
  settings: SpawnOptions,
  input: string,
  signal: AbortSignal,
  stderr: (text: string) => void,
  marker: string,
): Promise<AgentResult> {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    // A process group of its own, so that its child processes end with it.
    const child = spawn(program, args, { ...settings, detached: true, stdio: ["pipe", "pipe", "pipe"] });
    const release = child.pid === undefined ? () => {} : guardGroup(child.pid);
    const kill = () => {
      try {
        if (child.pid !== undefined) process.kill(-child.pid, "SIGKILL");
      } catch {
        // It has ended already.
      }
      killMarked([marker]);
    };
    const stop = () => {
      kill();
      reject(signal.reason);
    };
    signal.addEventListener("abort", stop, { once: true });
    let output = "";
    let over = false;
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      if (!over) output = (output + text).slice(-maxOutput);
    });
    child.stderr.setEncoding("utf8").on("data", stderr);
    child.on("error", (error) => {
      signal.removeEventListener("abort", stop);
      reject(cannotStart(program, error));
    });
    let late: NodeJS.Timeout | undefined;
    child.on("exit", () => {
      // What it started, such as a server of the model's, would go on, and its open outputs would delay "close".
      kill();
      // What it wrote is read in the next turn of the event loop. What comes later is from a process that outlives it.
      setImmediate(() => setImmediate(() => setImmediate(() => (over = true))));
      late = setTimeout(() => {
        child.stdout.destroy();
        child.stderr.destroy();
      }, lateOutputMs);
    });
    child.on("close", (code, killedBy) => {
      signal.removeEventListener("abort", stop);
      clearTimeout(late);
      release();
      // A retry would be free for an agent that ends itself so when it is about to fail.
      if (code === null) reject(new Error(`${[program, ...args].join(" ")} was ended by ${killedBy}`));
      else resolve({ output, exitCode: code });
    });
    // A program that does not read its input closes it.
    child.stdin.on("error", () => {});
    child.stdin.end(input);
  });
}

/** A program that is missing fails again. A lack of processes or memory may pass. */
function cannotStart(program: string, error: Error): Error {
  const { code } = error as NodeJS.ErrnoException;
  const message = `${program} cannot be started: ${error.message}`;
  if (code !== "ENOENT" && code !== "EACCES") return new RunError(message, { cause: error });
  return new UserError(message, { cause: error, hint: "check `command` and `cwd` of commandAgent, and the PATH" });
}

// An agent on another server: receives a task and the address of the model over HTTP.

// The rollout's time limit counts: an agent may work longer than the five minutes that undici waits for an answer.
const patient = new Agent({ headersTimeout: 0, bodyTimeout: 0 }).compose(interceptors.redirect({ maxRedirections: 5 }));

/** What an agent is sent, as JSON. */
export interface ExternalJob<Row = unknown> {
  task_id: string;
  task: Row;
  rollout: number;
  attempt: number;
  /** For OpenAI's clients, and for Anthropic's. */
  base_url: string;
  anthropic_base_url: string;
  api_key: string;
  /** Where to post the result after an answer of 202, once. It contains a secret: do not show it to the model. */
  result_url: string;
}

export interface ExternalAgentOptions<Row> {
  /** Jobs are posted to it. */
  url: string;
  headers?: Readonly<Record<string, string>>;
  /** What the agent gets of a row. Default: the row, with its answer if it has one. */
  task?: (row: Row) => unknown;
  /** Grades the result. Default: the result is a number or an object with `reward`. */
  reward?: (row: Row, result: unknown) => number | Outcome | Promise<number | Outcome>;
}

/**
 * The agent answers with its result, or with 202 and posts the result to `result_url` later. It must reach the gateway:
 * see `rllm.sdk.proxy` and `rllm.gateway.tunnel`.
 *
 * @example
 * externalAgent<Row>({ url: "https://agents.example/solve", reward: (row, result) => grade(row, result) })
 */
export function externalAgent<Row>(options: ExternalAgentOptions<Row>): Workflow<Row> {
  const { url, headers, task: taskOf = (row: Row): unknown => row, reward } = options;
  return async (task, { gateway, rollout, attempt, signal, stage }) => {
    stage("agent");
    const job: ExternalJob = {
      task_id: task.id,
      task: taskOf(task.row),
      rollout,
      attempt,
      base_url: gateway.baseURL,
      anthropic_base_url: gateway.anthropicBaseURL,
      api_key: gateway.apiKey,
      result_url: gateway.resultURL,
    };
    const { statusCode: status, body } = await request(url, {
      method: "POST",
      body: JSON.stringify(job),
      signal,
      dispatcher: patient,
      headers: { "content-type": "application/json", ...headers },
    });
    const later = status === 202;
    const text = await answerText(body, url);
    if (status < 200 || status > 299) {
      const Failed = status >= 500 || status === 429 ? RunError : Error;
      throw new Failed(`the agent at ${url} answered ${status}: ${text.slice(0, 500)}`);
    }
    const result: unknown = later ? await gateway.result() : JSON.parse(text);
    stage("reward");
    return reward === undefined ? toOutcome(result, "the agent's result") : reward(task.row, result);
  };
}
