/** Docker or podman, through its command line, and the images that are built once for each content of a folder. */
import { execFile, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, readlinkSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import { RunError, UserError } from "../../base/errors.ts";

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

// Builds an image once for each content of its folder.

/** Images with this label were built by Hone. */
const imageLabel = "hone.content";

/** SHA-256 of the names, contents and modes of a folder's files. */
export function contentHash(folder: string): string {
  const hash = createHash("sha256");
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true });
  const paths = entries.filter((entry) => !entry.isDirectory()).map((entry) => join(entry.parentPath, entry.name));
  for (const path of paths.sort()) {
    const isLink = entries.some((entry) => entry.isSymbolicLink() && join(entry.parentPath, entry.name) === path);
    const content = isLink ? Buffer.from(readlinkSync(path)) : readFileSync(path);
    hash.update(`${relative(folder, path)}\0${isLink ? "link" : statSync(path).mode & 0o777}\0${content.length}\0`);
    hash.update(content);
  }
  return hash.digest("hex");
}

const building = new Map<string, Promise<string>>();

/**
 * @param folder with a Dockerfile
 * @returns the image's name
 * @throws UserError if the Dockerfile fails, RunError if the disk is full
 */
export function buildImage(engine: Engine, folder: string, timeoutSeconds: number): Promise<string> {
  const content = contentHash(folder).slice(0, 20);
  const known = building.get(content) ?? build(engine, folder, content, timeoutSeconds);
  building.set(content, known);
  // `hone tasks clean` may remove it at any time, so the next call looks again.
  return known.finally(() => building.delete(content));
}

async function build(engine: Engine, folder: string, content: string, timeoutSeconds: number): Promise<string> {
  // Without a registry in its name, podman would look for it on the network.
  const image = `${engine.name === "podman" ? "localhost/" : ""}hone-task:${content}`;
  if ((await engine.run(["image", "inspect", image])).exitCode === 0) return image;
  const args = ["build", "--label", `${imageLabel}=${content}`, "-t", image, folder];
  const { exitCode, stdout, stderr } = await engine.run(args, { timeoutMs: timeoutSeconds * 1000 });
  if (exitCode === 0) return image;
  const output = `${stdout}\n${stderr}`.trim();
  const last = output.split("\n").slice(-15).join("\n  ");
  if (/no space left on device/i.test(output)) {
    const hint = `free some disk, e.g. with "${engine.name} image prune" or "hone tasks clean"`;
    throw new RunError(`the disk is full: the image of ${folder} cannot be built`, { details: last, hint });
  }
  throw new UserError(`the image of ${folder} cannot be built:\n  ${last}`, {
    hint: `try "${engine.name} build ${folder}"`,
  });
}

/** Removes the images that `buildImage` made and no container uses. @returns how many */
export async function removeImages(engine: Engine): Promise<number> {
  const { stdout } = await engine.run(["image", "ls", "-q", "--filter", `label=${imageLabel}`]);
  let removed = 0;
  for (const id of new Set(stdout.split("\n").filter(Boolean))) {
    if ((await engine.run(["rmi", id])).exitCode === 0) removed++;
  }
  return removed;
}
