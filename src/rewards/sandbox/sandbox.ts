import { availableParallelism } from "node:os";
import { Semaphore } from "../../base/concurrency.ts";
import { UserError } from "../../base/errors.ts";
import { giveUpCgroups, hasCgroups } from "./limits.ts";
import { removeLeftovers, runConnected, runProgram } from "./run-program.ts";
import type { Isolation, LocalLevel, Sandbox } from "./types.ts";

export type { Isolation, Sandbox, SandboxLimits, SandboxProgram, SandboxResult } from "./types.ts";

// Tries once how well this machine can isolate a program.

export interface SandboxOptions {
  /**
   * The weakest isolation to accept. Default `"namespaces"`. `"process"` also works where namespaces are not available
   * (macOS, most containers), but protects less: see the sandbox's `isolation` and docs/decisions/sandbox.md.
   */
  atLeast?: LocalLevel;
  /** Uses this level even if a stronger one is available; for tests. */
  only?: LocalLevel;
  /** Maximum number of concurrent programs. Default: the number of cores. */
  concurrency?: number;
}

const tried = new Map<LocalLevel, Promise<Isolation | Error>>();

/** What a level enforces on this machine, or why it is not available; tried once. */
function tryLevel(level: LocalLevel): Promise<Isolation | Error> {
  const known = tried.get(level) ?? (level === "namespaces" ? tryNamespaces() : tryProcess());
  tried.set(level, known);
  return known;
}

async function tryNamespaces(): Promise<Isolation | Error> {
  if (process.platform !== "linux") return new Error(`${process.platform} does not have them`);
  const output = await trial("namespaces", "true & wait; echo inside");
  if (output instanceof Error) return output;
  if (output !== "inside\n") return new Error(`a trial printed ${JSON.stringify(output)}`);
  const held = { network: true, files: true, processes: true, secrets: true, lifetime: true, resources: true };
  return { level: "namespaces", ...held, memory: hasCgroups() ? "cgroup" : "watched" };
}

async function tryProcess(): Promise<Isolation | Error> {
  const linux = process.platform === "linux";
  const output = await trial("process", `cat /proc/${process.pid}/environ >/dev/null 2>&1 || echo hidden`);
  if (output instanceof Error) return output;
  const held = { network: false, files: false, processes: false, lifetime: linux, resources: linux };
  const memory = !linux ? "unlimited" : hasCgroups() ? "cgroup" : "watched";
  return { level: "process", ...held, secrets: linux && output === "hidden\n", memory };
}

async function trial(level: LocalLevel, script: string): Promise<string | Error> {
  const run = () => runProgram(level, { command: ["sh", "-c", script] });
  try {
    const { stdout, stderr } = await run().catch((error: unknown) => {
      if (!hasCgroups()) throw error;
      giveUpCgroups(); // They can be created but not entered.
      return run();
    });
    return stdout + stderr;
  } catch (error) {
    return error as Error;
  }
}

let leftoversRemoved: Promise<void> | undefined;

/**
 * Opens a sandbox for untrusted programs, such as a model's: no access to other processes, files and networks, and limits
 * on time, memory, processes, files and output. `isolation` lists which of these this machine enforces. The first call also
 * removes what sandboxes of killed processes left.
 *
 * @throws UserError if this machine cannot provide the requested isolation
 * @example
 * const sandbox = await openSandbox();
 * const { stdout } = await sandbox.run({ command: ["python", "-c", "print(1 + 1)"] }); // "2\n"
 */
export async function openSandbox(options: SandboxOptions = {}): Promise<Sandbox> {
  const { atLeast = "namespaces", only, concurrency = availableParallelism() } = options;
  let isolation = await tryLevel(only ?? "namespaces");
  if (isolation instanceof Error && (only ?? atLeast) === "namespaces") {
    throw new UserError(`programs cannot be isolated here by Linux namespaces: ${isolation.message}`, {
      hint:
        'allow user namespaces on this machine, or accept { atLeast: "process" }, which limits the program but does not keep ' +
        "it from all files and networks (docs/decisions/sandbox.md)",
    });
  }
  if (isolation instanceof Error) isolation = await tryLevel("process");
  if (isolation instanceof Error) throw isolation;
  const level = isolation.level as LocalLevel;
  leftoversRemoved ??= removeLeftovers();
  await leftoversRemoved;
  const semaphore = new Semaphore(concurrency);
  return {
    isolation,
    run: (program) => semaphore.run(() => runProgram(level, program), program.signal),
    runConnected: (first, second) =>
      semaphore.run(
        () => runConnected((program, connection) => runProgram(level, program, connection), first, second),
        first.signal,
      ),
  };
}

// Describes in a sentence what a sandbox prevents on this machine.

const claims = {
  network: "the network",
  files: "other files",
  processes: "other processes",
  secrets: "variables and memory of other processes",
} as const;

const memory: Record<Isolation["memory"], string> = {
  cgroup: "memory is limited by the kernel",
  watched: "memory is checked ten times a second",
  unlimited: "memory is not limited",
};

/** One line: what programs in the sandbox cannot reach, and what is not protected. */
export function describeIsolation(isolation: Isolation): string {
  const names = Object.keys(claims) as (keyof typeof claims)[];
  const list = (held: boolean) => names.filter((name) => isolation[name] === held).map((name) => claims[name]);
  const [closed, open] = [list(true).join(", "), list(false).join(", ")];
  const parts = [
    closed && `programs cannot reach ${closed}`,
    open && `not protected: ${open}`,
    memory[isolation.memory],
    !isolation.lifetime && "a process that leaves its group survives",
  ];
  return `level ${isolation.level}: ${parts.filter(Boolean).join("; ")}`;
}
