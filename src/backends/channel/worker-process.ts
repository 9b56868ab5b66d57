/** A Python worker as a process. It does not know messages. */
import { delimiter } from "node:path";
import { fileURLToPath } from "node:url";
import { ownerMark } from "../../files/temporary-names.ts";
import type { Death } from "../../processes/describe-death.ts";
import { type PipedProcess, startProcess } from "../../processes/start-process.ts";
import type { EngineDied } from "../engine-died.ts";

export interface WorkerOptions {
  /** The Python executable. */
  python: string;
  /** Folders with further packages, as in PYTHONPATH. */
  packages?: string | undefined;
  /** A package of `worker/`. */
  module: "hone_worker" | "hone_sharded" | "hone_verl";
  env: Readonly<Record<string, string>>;
  /** The worker's standard error is appended here. */
  logFile?: string | undefined;
  /** Seconds that it has to end before it is killed. */
  graceSeconds: number;
  /** Explains why it ended. */
  died: (death: Death) => EngineDied;
}

export interface WorkerProcess extends Omit<PipedProcess, "ended" | "lastLines"> {
  /** Resolves with the reason when the process has ended; never rejects. */
  readonly ended: Promise<EngineDied>;
}

/** The same relative path from src/ and from dist/. */
const workerDirectory = fileURLToPath(new URL("../../../worker", import.meta.url));

/** @throws RunError when Python cannot be started at all */
export async function startWorker(options: WorkerOptions): Promise<WorkerProcess> {
  const { python, packages, module, env, logFile, graceSeconds, died } = options;
  const worker = await startProcess({
    name: "Python",
    command: python,
    args: ["-m", module],
    env: {
      ...env,
      PYTHONPATH: [workerDirectory, packages, process.env.PYTHONPATH].filter(Boolean).join(delimiter),
      PYTHONUNBUFFERED: "1",
      HONE_OWNER: ownerMark,
      // The worker uses it to notice when Node is killed.
      HONE_PARENT_PID: String(process.pid),
    },
    channel: "pipes",
    logFile,
    graceSeconds,
  });
  return { ...worker, ended: worker.ended.then(died) };
}
