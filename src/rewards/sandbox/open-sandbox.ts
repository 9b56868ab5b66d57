/** Finds out how well this machine can isolate a program, once, by trying it. */
import { availableParallelism } from "node:os";
import { UserError } from "../../errors.ts";
import { createLimiter } from "../limiter.ts";
import { runProgram } from "./run-program.ts";
import type { Isolation, Sandbox } from "./types.ts";

export interface SandboxOptions {
  /**
   * The least isolation to make do with. Default `"namespaces"`. `"process"` also runs where namespaces cannot be had
   * (macOS, most containers): the program can then read this user's files and use the network.
   */
  atLeast?: Isolation["level"];
  /** Leaves namespaces unused even where they can be had, for tests of the weaker level. */
  only?: Isolation["level"];
  /** Programs at one time. Default: the number of cores. */
  concurrency?: number;
}

const levels: Record<Isolation["level"], Isolation> = {
  namespaces: { level: "namespaces", network: true, files: true, processes: true, resources: true },
  process: {
    ...{ level: "process", network: false, files: false, processes: false },
    resources: process.platform === "linux",
  },
};

let tried: Promise<string | undefined> | undefined;

/** Undefined when namespaces work here, else why they do not. */
function tryNamespaces(): Promise<string | undefined> {
  tried ??= (async () => {
    if (process.platform !== "linux") return `${process.platform} has none`;
    const result = await runProgram(levels.namespaces, { command: ["sh", "-c", "true & wait; echo inside"] }).catch(
      (error: Error) => error,
    );
    if (result instanceof Error) return result.message;
    return result.stdout === "inside\n" ? undefined : `a trial gave ${JSON.stringify(result.stdout + result.stderr)}`;
  })();
  return tried;
}

/**
 * A place to run programs that nobody has read, such as a model's: own processes, no network, no files but its own,
 * limits on time, memory, processes, files and output. `isolation` says what of that holds on this machine.
 *
 * @throws UserError when this machine cannot give the isolation asked for
 * @example
 * const sandbox = await openSandbox();
 * const { stdout } = await sandbox.run({ command: ["python", "-c", "print(1 + 1)"] }); // "2\n"
 */
export async function openSandbox(options: SandboxOptions = {}): Promise<Sandbox> {
  const { atLeast = "namespaces", only, concurrency = availableParallelism() } = options;
  const why = only === "process" ? "they were asked not to be used" : await tryNamespaces();
  if (why !== undefined && (only ?? atLeast) === "namespaces") {
    throw new UserError(`programs cannot be isolated here by Linux namespaces: ${why}`, {
      hint:
        'allow user namespaces on this machine, or accept { atLeast: "process" }: limits and a process group of its own, ' +
        "but the program can then read your files and use the network",
    });
  }
  const isolation = levels[why === undefined ? "namespaces" : "process"];
  const limiter = createLimiter(concurrency);
  return { isolation, run: (program) => limiter(() => runProgram(isolation, program), program.signal) };
}
