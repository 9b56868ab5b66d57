/** Starts worker/wandb_sidecar.py with the SDK of the hash lock, in the local engine's Python. */
import { type ChildProcessByStdio, spawn } from "node:child_process";
import { openSync } from "node:fs";
import { delimiter } from "node:path";
import type { Readable, Writable } from "node:stream";
import { fileURLToPath } from "node:url";
import { runSetup, setupCommand } from "./setup.ts";

const script = fileURLToPath(new URL("../../../worker/wandb_sidecar.py", import.meta.url));

/** What brings the SDK back by hand. */
export const wandbInstallCommand = setupCommand("package", "wandb");

/**
 * @param logFile the SDK's own messages are appended here
 * @throws UserError or RunError when the SDK cannot be set up
 */
export async function startWandbSidecar(logFile: string): Promise<ChildProcessByStdio<Writable, Readable, null>> {
  const { python } = await runSetup("python");
  const { directory } = await runSetup("package", "wandb");
  const path = [directory, process.env.PYTHONPATH].filter(Boolean).join(delimiter);
  const env = { ...process.env, PYTHONPATH: path };
  const child = spawn(python!, [script], { stdio: ["pipe", "pipe", openSync(logFile, "a")], env });
  return child as ChildProcessByStdio<Writable, Readable, null>;
}
