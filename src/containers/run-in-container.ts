/** Runs one untrusted program in a container of its own and reads its frames (worker/sandbox/container_runner.py). */
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { RunError } from "../errors.ts";
import type { Connection } from "../rewards/sandbox/run-program.ts";
import type { SandboxLimits, SandboxProgram, SandboxResult } from "../rewards/sandbox/types.ts";
import type { Started } from "./start.ts";

/** The programs of an image that can run the runner and the programs. */
export interface Interpreters {
  /** Absolute paths in the container. */
  python?: string;
  node?: string;
}

interface Launch {
  files: Readonly<Record<string, string>>;
  command: readonly string[];
  stdin: string;
  channel: boolean;
  cpuSeconds: number;
  fileBytes: number;
  /** Bytes of each process; null for V8, which reserves more than it uses. */
  addressSpace: number | null;
}

const source = (name: string) => readFileSync(new URL(`../../worker/sandbox/${name}`, import.meta.url), "utf8");
const setUpSeconds = 60;
const endSeconds = 10;

function runnerOf({ python, node }: Interpreters): string[] {
  if (python) return [python, "-I", "-S", "-c", source("container_runner.py")];
  return [node ?? "node", "--input-type=module", "-e", source("container-runner.mjs")];
}

function launchOf(program: SandboxProgram, limits: SandboxLimits, found: Interpreters, channel: boolean): Launch {
  const [name, ...args] = program.command;
  const known = name === "python" ? found.python : name === "node" ? found.node : undefined;
  const command = known === undefined ? [name, ...args] : [known, ...(name === "python" ? ["-I", "-B"] : []), ...args];
  return {
    files: program.files ?? {},
    command,
    stdin: program.stdin ?? "",
    channel,
    cpuSeconds: Math.ceil(limits.cpuSeconds),
    fileBytes: limits.fileBytes,
    addressSpace: name === "python" ? limits.memoryBytes : null,
  };
}

/** The container ends with the program, and with it all of its processes. */
export async function runInContainer(
  box: Started,
  found: Interpreters,
  program: SandboxProgram,
  limits: SandboxLimits,
  connection?: Connection,
): Promise<SandboxResult> {
  const { signal } = program;
  const args = ["exec", "-i", box.id, ...runnerOf(found)];
  const child = spawn(box.engine.name, args, { stdio: "pipe" });
  const closed = once(child, "close");
  closed.catch(() => {});
  let ended: SandboxResult["ended"] | undefined;
  const stop = (why?: SandboxResult["ended"]) => {
    ended ??= why;
    void box.remove();
  };
  const onAbort = () => stop();
  signal?.addEventListener("abort", onAbort, { once: true });
  const failed = { text: "" };
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    failed.text = (failed.text + text).slice(-2000);
  });
  // It may end before it has read its input.
  child.stdin.on("error", () => {});
  const frames = readFrames(child, limits.outputBytes, () => stop("output"), connection !== undefined);
  child.stdin.write(`${JSON.stringify(launchOf(program, limits, found, connection !== undefined))}\n`);
  if (connection === undefined) child.stdin.end();
  let timer: NodeJS.Timeout | undefined;
  try {
    signal?.throwIfAborted();
    const late = sleep(setUpSeconds * 1000, `it took more than ${setUpSeconds} seconds`, { ref: false });
    const gone = closed.then(
      () => failed.text.trim() || "it ended",
      (error: Error) => error.message,
    );
    const problem = await Promise.race([frames.ready, late, gone]);
    signal?.throwIfAborted();
    if (problem !== undefined)
      throw new RunError(`the program could not be started in a container of ${box.image}: ${problem}`);
    const start = performance.now();
    timer = setTimeout(() => stop("time"), limits.seconds * 1000);
    connection?.onChannel(frames.channel);
    connection?.over.then(stop);
    const end = await Promise.race([frames.end, closed.then(() => undefined)]);
    const seconds = (performance.now() - start) / 1000;
    signal?.throwIfAborted();
    // The program may end the runner, but not the container.
    if (end === undefined && ended === undefined && !(await box.isRunning())) {
      throw new RunError(`the container of ${box.image} ended while a program ran: ${failed.text.trim()}`);
    }
    const { code = null, ranOut = false, peak = 0 } = end ?? {};
    // 24 is SIGXCPU, the limit of processor time.
    const why = ended ?? (ranOut ? "memory" : code === -24 ? "time" : "exit");
    return {
      ended: why,
      exitCode: why === "exit" && code !== null && code >= 0 ? code : null,
      ...{ stdout: frames.stdout(), stderr: frames.stderr(), seconds, peakMemoryBytes: peak },
    };
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", onAbort);
    await box.remove();
    await Promise.race([closed.catch(() => {}), sleep(endSeconds * 1000, undefined, { ref: false })]);
    child.kill("SIGKILL");
  }
}

interface End {
  code: number;
  ranOut: boolean;
  peak: number;
}

function readFrames(child: ChildProcessWithoutNullStreams, most: number, onTooMuch: () => void, connected: boolean) {
  let rest = Buffer.alloc(0);
  const outputs = { o: [] as Buffer[], e: [] as Buffer[] };
  const bytes = { o: 0, e: 0 };
  let [onReady, onEnd]: [() => void, (end: End) => void] = [() => {}, () => {}];
  const ready = new Promise<undefined>((resolve) => {
    onReady = () => resolve(undefined);
  });
  const end = new Promise<End>((resolve) => {
    onEnd = resolve;
  });
  const channel = new Duplex({
    read: () => child.stdout.resume(),
    write: (data, _encoding, done) => {
      child.stdin.write(data);
      done();
    },
    final: (done) => {
      child.stdin.end();
      done();
    },
  });
  channel.on("error", () => {});
  child.stdout.once("close", () => channel.push(null));
  function take(kind: string, data: Buffer): void {
    if (kind === "r") onReady();
    if (kind === "x") onEnd(endOf(data));
    // A reader that is slow makes the program wait.
    if (kind === "c" && connected && !channel.push(data)) child.stdout.pause();
    if (kind !== "o" && kind !== "e") return;
    const room = most - bytes[kind];
    bytes[kind] += data.length;
    if (room > 0) outputs[kind].push(data.subarray(0, room));
    if (bytes[kind] > most) onTooMuch();
  }
  child.stdout.on("data", (data: Buffer) => {
    rest = Buffer.concat([rest, data]);
    while (rest.length >= 5) {
      const size = rest.readUInt32BE(1);
      // The runner sends 64 KiB at most; a program that writes in its place does not make this process keep more.
      if (size > 2 ** 20) return onTooMuch();
      if (rest.length < 5 + size) break;
      take(String.fromCharCode(rest[0] ?? 0), Buffer.from(rest.subarray(5, 5 + size)));
      rest = rest.subarray(5 + size);
    }
  });
  const textOf = (kind: "o" | "e") => Buffer.concat(outputs[kind]).toString("utf8");
  return { ready, end, channel, stdout: () => textOf("o"), stderr: () => textOf("e") };
}

/** What the program may have forged is a plain end. */
function endOf(data: Buffer): End {
  try {
    const { code, ranOut, peak } = JSON.parse(data.toString()) as Partial<End>;
    return { code: Number(code), ranOut: ranOut === true, peak: Number(peak) || 0 };
  } catch {
    return { code: -9, ranOut: false, peak: 0 };
  }
}
