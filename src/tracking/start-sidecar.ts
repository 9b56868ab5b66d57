/** Starts worker/tracking_sidecar.py in the worker's Python, with the client that requirements-{name}.lock pins. */
import { type ChildProcessByStdio, spawn } from "node:child_process";
import { openSync } from "node:fs";
import { delimiter } from "node:path";
import type { Readable, Writable } from "node:stream";
import { fileURLToPath } from "node:url";
import { preparePackage, preparePython, setupCommand } from "../base/python.ts";
import type { ClientName } from "./sidecar-logger.ts";

const script = fileURLToPath(new URL("../../worker/tracking_sidecar.py", import.meta.url));

/** Installs the client by hand. */
export const clientInstallCommand = (name: ClientName) => setupCommand("package", name);

/**
 * @param logFile the client's own messages are appended here
 * @throws UserError or RunError if the client cannot be installed
 */
export async function startSidecar(
  name: ClientName,
  logFile: string,
): Promise<ChildProcessByStdio<Writable, Readable, null>> {
  const { python } = await preparePython();
  const path = [await preparePackage(name), process.env.PYTHONPATH].filter(Boolean).join(delimiter);
  const env = { ...process.env, PYTHONPATH: path };
  const child = spawn(python, [script, name], { stdio: ["pipe", "pipe", openSync(logFile, "a")], env });
  return child as ChildProcessByStdio<Writable, Readable, null>;
}
