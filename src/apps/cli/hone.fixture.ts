/** The command line from its source, in a process of its own. */
import { type ChildProcess, type SpawnOptions, spawn, spawnSync } from "node:child_process";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const project = fileURLToPath(new URL("../../..", import.meta.url));
const command = ["--import", "tsx", join(project, "src/apps/cli/main.ts")];

export const startHone = (args: readonly string[], options: Pick<SpawnOptions, "env" | "stdio"> = {}): ChildProcess =>
  spawn(process.execPath, [...command, ...args], { cwd: project, ...options });

/** Waits for the command's end. */
export const runHone = (args: readonly string[], env = process.env) =>
  spawnSync(process.execPath, [...command, ...args], { cwd: project, env, encoding: "utf8" });

/** @returns the output until it contains `text`, or the whole output of a command that succeeds */
export function outputOf(child: ChildProcess, text?: RegExp): Promise<string> {
  return new Promise((resolve, reject) => {
    let output = "";
    for (const stream of [child.stdout!, child.stderr!]) {
      stream.setEncoding("utf8").on("data", (piece: string) => {
        output += piece;
        if (text?.test(output)) resolve(output);
      });
    }
    child.once("close", (code) => (code === 0 ? resolve(output) : reject(new Error(`ended with ${code}:\n${output}`))));
  });
}
