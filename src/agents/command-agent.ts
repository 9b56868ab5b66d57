/** An agent that is a program: started for each rollout, told where the model is, asked at its end what it was worth. */
import { spawn } from "node:child_process";
import type { GatewayAccess, Outcome, Task, Workflow } from "./types.ts";

export interface AgentResult {
  /** What the program wrote to its standard output. */
  output: string;
  exitCode: number;
}

export interface CommandAgentOptions<Row> {
  /** The program and its arguments; no shell is between. */
  command: readonly [string, ...string[]] | ((row: Row) => readonly [string, ...string[]]);
  /** Written to its standard input. Default: the row as one line of JSON. */
  input?: (row: Row) => string;
  /** Beside the rollout's own and what it needs to find the model. */
  env?: Readonly<Record<string, string>>;
  cwd?: string;
  /**
   * What the run was worth. Default: the last line that the program writes, which is then a number or a JSON object with
   * `reward`; a program that ends with another code than 0 has failed.
   */
  reward?: (row: Row, result: AgentResult) => number | Outcome | Promise<number | Outcome>;
}

/** Of the output; what comes before is forgotten. */
const mostOutput = 4 * 2 ** 20;

/**
 * The program finds the model through OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY,
 * which the official clients read by themselves, and its task in HONE_TASK. When the rollout ends before it does, its
 * whole process group is killed.
 *
 * @example
 * commandAgent<{ question: string; answer: string }>({
 *   command: ["python", "agent.py"],
 *   reward: (row, { output }) => Number(output.includes(row.answer)),
 * })
 */
export function commandAgent<Row>(options: CommandAgentOptions<Row>): Workflow<Row> {
  const { command, input = (row: Row) => `${JSON.stringify(row)}\n`, reward } = options;
  return async (task, { gateway, signal, stage }) => {
    stage("agent");
    const [program, ...args] = typeof command === "function" ? command(task.row) : command;
    const env = { ...process.env, ...options.env, ...agentEnvironment(task, gateway) };
    const cwd = options.cwd === undefined ? {} : { cwd: options.cwd };
    const result = await runProgram({ program, args, env, ...cwd, input: input(task.row), signal });
    stage("reward");
    if (reward !== undefined) return reward(task.row, result);
    return toOutcome(lastLine(result, program), `the last line of ${program}'s output`);
  };
}

export const agentEnvironment = (task: Task, gateway: GatewayAccess): Record<string, string> => ({
  OPENAI_BASE_URL: gateway.baseURL,
  OPENAI_API_KEY: gateway.apiKey,
  ANTHROPIC_BASE_URL: gateway.anthropicBaseURL,
  ANTHROPIC_API_KEY: gateway.apiKey,
  HONE_TASK: JSON.stringify(task.row),
  HONE_TASK_ID: task.id,
});

/** @throws Error when it is neither a number nor an object with a reward */
export function toOutcome(value: unknown, what: string): number | Outcome {
  if (typeof value === "number" || (typeof value === "object" && value !== null && "reward" in value)) {
    return value as number | Outcome;
  }
  throw new Error(`${what} is no number and no object with a reward: ${JSON.stringify(value)?.slice(0, 200)}`);
}

function lastLine({ output, exitCode }: AgentResult, program: string): unknown {
  if (exitCode !== 0) throw new Error(`${program} ended with ${exitCode}`);
  const line = output.trimEnd().split("\n").at(-1) ?? "";
  try {
    return JSON.parse(line);
  } catch {
    return line;
  }
}

interface ProgramOptions {
  program: string;
  args: readonly string[];
  env: NodeJS.ProcessEnv;
  cwd?: string;
  input: string;
  signal: AbortSignal;
}

function runProgram({ program, args, env, cwd, input, signal }: ProgramOptions): Promise<AgentResult> {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    // A group of its own, so that what it started goes with it.
    const child = spawn(program, args, {
      ...{ env, detached: true, stdio: ["pipe", "pipe", "inherit"] as const },
      ...(cwd === undefined ? {} : { cwd }),
    });
    const kill = () => {
      try {
        if (child.pid !== undefined) process.kill(-child.pid, "SIGKILL");
      } catch {
        // It has ended already.
      }
    };
    const stop = () => {
      kill();
      reject(signal.reason);
    };
    signal.addEventListener("abort", stop, { once: true });
    let output = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      output = (output + text).slice(-mostOutput);
    });
    child.on("error", (error) => {
      signal.removeEventListener("abort", stop);
      reject(new Error(`${program} cannot be started: ${error.message}`, { cause: error }));
    });
    child.on("close", (code, killedBy) => {
      signal.removeEventListener("abort", stop);
      kill();
      if (code === null) reject(new Error(`${program} was ended by ${killedBy}`));
      else resolve({ output, exitCode: code });
    });
    // A program that does not read its input closes it.
    child.stdin.on("error", () => {});
    child.stdin.end(input);
  });
}
