/** Docker or podman, through its command line. */
import { execFile, spawnSync } from "node:child_process";
import { RunError, UserError } from "../errors.ts";

export const engines = ["docker", "podman"] as const;
export type EngineName = (typeof engines)[number];

interface Ran {
  exitCode: number;
  stdout: string;
  stderr: string;
  /** It was stopped at one of the limits. */
  cut?: "timeout" | "output";
}

interface RunOptions {
  input?: string | Uint8Array;
  signal?: AbortSignal;
  timeoutMs?: number;
  /** In bytes, of each output; default 64 MiB. */
  maxOutput?: number;
}

export interface Engine {
  readonly name: EngineName;
  /** Runs a command of the engine, e.g. `["ps", "-a"]`. Never rejects because of its exit code. */
  run(args: readonly string[], options?: RunOptions): Promise<Ran>;
}

const engineOf = (name: EngineName): Engine => ({
  name,
  run: (args, { input, signal, timeoutMs = 0, maxOutput = 64 * 2 ** 20 } = {}) =>
    new Promise((resolve, reject) => {
      const options = {
        maxBuffer: maxOutput,
        timeout: timeoutMs,
        killSignal: "SIGKILL",
        ...(signal ? { signal } : {}),
      } as const;
      const child = execFile(name, args, options, (error, stdout, stderr) => {
        if (signal?.aborted) return reject(signal.reason);
        if (error === null) return resolve({ exitCode: 0, stdout, stderr });
        const { code } = error;
        if (typeof code === "number") return resolve({ exitCode: code, stdout, stderr });
        if (String(code) === "ERR_CHILD_PROCESS_STDIO_MAXBUFFER")
          return resolve({ exitCode: 137, stdout, stderr, cut: "output" });
        if (error.killed && timeoutMs > 0) return resolve({ exitCode: 137, stdout, stderr, cut: "timeout" });
        reject(new RunError(`${name} ${args[0]} failed: ${error.message}`, { cause: error }));
      });
      // A command that does not read its input closes it.
      child.stdin?.on("error", () => {});
      child.stdin?.end(input);
    }),
});

/** Much more than it takes on a busy machine. */
const infoMs = 60_000;
export const noAnswer = `no answer within ${infoMs / 1000} s`;

const found = new Map<string, Promise<Engine>>();

/**
 * Finds an engine that works.
 * @param name default: Docker if it runs, else podman
 * @throws UserError naming the command that installs one
 */
export function findEngine(name?: EngineName): Promise<Engine> {
  const key = name ?? "any";
  const known = found.get(key) ?? find(name === undefined ? engines : [name]);
  found.set(key, known);
  // A daemon that is started later is found.
  known.catch(() => found.delete(key));
  return known;
}

async function find(names: readonly EngineName[]): Promise<Engine> {
  const problems: string[] = [];
  for (const name of names) {
    const engine = engineOf(name);
    const answer: Pick<Ran, "exitCode" | "stderr" | "cut"> = await engine
      .run(["info"], { timeoutMs: infoMs })
      .catch((error: Error) => ({
        exitCode: 1,
        stderr: /ENOENT/.test(error.message) ? "not installed" : error.message,
      }));
    if (answer.exitCode === 0) return engine;
    const why = answer.cut === "timeout" ? noAnswer : answer.stderr.trim().split("\n").at(-1);
    problems.push(`${name}: ${why}`);
  }
  throw new UserError(`no container engine works (${problems.join("; ")})`, {
    hint: 'install one: on Debian or Ubuntu "apt-get install podman runc", or Docker; docs/guide/harbor.md has podman\'s settings in containers',
  });
}

/** Removes the containers, networks, volumes and pods of compose projects. */
export async function removeProjects(engine: Engine, isRemoved: (project: string) => boolean): Promise<void> {
  const commands = removal(engine.name, isRemoved);
  for (let next = commands.next(); !next.done; ) next = commands.next(await engine.run(next.value));
}

/** The same when this process ends, which then cannot wait. */
export function removeProjectsNow(name: EngineName, isRemoved: (project: string) => boolean): void {
  const commands = removal(name, isRemoved);
  for (let next = commands.next(); !next.done; ) {
    const { status, stdout, stderr } = spawnSync(name, next.value, { encoding: "utf8", timeout: 60_000 });
    next = commands.next({ exitCode: status ?? 1, stdout: stdout ?? "", stderr: stderr ?? "" });
  }
}

/** Yields commands, and takes what each has printed. */
function* removal(name: EngineName, isRemoved: (project: string) => boolean): Generator<string[], void, Ran> {
  const label = "com.docker.compose.project";
  function* list(...args: string[]): Generator<string[], string[], Ran> {
    const format = `{{.${args[0] === "ps" ? "ID" : "Name"}}} {{.Labels}}`;
    const { stdout } = yield [...args, "--filter", `label=${label}`, "--format", format];
    return stdout.split("\n").flatMap((line) => {
      const project = /com\.docker\.compose\.project[=:]([^\s,\]]+)/.exec(line)?.[1];
      return project !== undefined && isRemoved(project) ? [line.split(" ", 1)[0] ?? ""] : [];
    });
  }
  function* remove(ids: string[], ...args: string[]): Generator<string[], void, Ran> {
    if (ids.length === 0) return;
    const { exitCode, stderr } = yield [...args, ...ids];
    if (exitCode !== 0 && !/no such|not found/i.test(stderr)) {
      throw new RunError(`${name} ${args.join(" ")} failed: ${stderr.trim()}`);
    }
  }
  yield* remove(yield* list("ps", "-a"), "rm", "-f", "-v");
  yield* remove(yield* list("network", "ls"), "network", "rm");
  yield* remove(yield* list("volume", "ls"), "volume", "rm");
  if (name === "podman") {
    const { stdout } = yield ["pod", "ls", "--format", "{{.Name}}"];
    const pods = stdout.split("\n").filter((pod) => pod.startsWith("pod_") && isRemoved(pod.slice("pod_".length)));
    yield* remove(pods, "pod", "rm", "-f");
  }
}
