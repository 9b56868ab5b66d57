/** Starts worker/wandb_sidecar.py in the worker's Python, with the SDK that requirements-wandb.lock pins. */
import { type ChildProcessByStdio, spawn } from "node:child_process";
import { openSync } from "node:fs";
import { delimiter } from "node:path";
import type { Readable, Writable } from "node:stream";
import { fileURLToPath } from "node:url";
import { preparePackage, preparePython, setupCommand } from "../../python/prepare.ts";

const script = fileURLToPath(new URL("../../../worker/wandb_sidecar.py", import.meta.url));

/** Installs the SDK by hand. */
export const wandbInstallCommand = setupCommand("package", "wandb");

/**
 * @param logFile the SDK's own messages are appended here
 * @throws UserError or RunError if the SDK cannot be installed
 */
export async function startWandbSidecar(logFile: string): Promise<ChildProcessByStdio<Writable, Readable, null>> {
  const { python } = await preparePython();
  const path = [await preparePackage("wandb"), process.env.PYTHONPATH].filter(Boolean).join(delimiter);
  const env = { ...process.env, PYTHONPATH: path };
  const child = spawn(python, [script], { stdio: ["pipe", "pipe", openSync(logFile, "a")], env });
  return child as ChildProcessByStdio<Writable, Readable, null>;
}
