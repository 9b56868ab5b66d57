/** The sandboxes of this machine, for tests. */

import { listProcesses } from "./limits.ts";
import { openSandbox } from "./sandbox.ts";
import type { LocalLevel, Sandbox, SandboxLimits } from "./types.ts";

export const best = await openSandbox({ atLeast: "process" });
export const weak = await openSandbox({ only: "process" });

/** Each level that this machine supports. */
export const sandboxes: [LocalLevel, Sandbox][] = [["process", weak]];
if (best.isolation.level === "namespaces") sandboxes.push(["namespaces", best]);

interface Options {
  stdin?: string;
  limits?: Partial<SandboxLimits>;
}

export const runPython = (sandbox: Sandbox, code: string, options: Options = {}) =>
  sandbox.run({ command: ["python", "main.py"], files: { "main.py": code }, ...options });

/** Counts the running programs that sleep for this number of seconds, which no other test uses. */
export const countSleepers = (seconds: number) =>
  listProcesses().filter(({ command }) => command.includes(String(seconds))).length;
