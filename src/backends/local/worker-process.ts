/** The local engine's worker as a process. It does not know messages. */
import { fileURLToPath } from "node:url";
import { ownerMark } from "../../files/temporary-names.ts";
import { type Death, describeDeath } from "../../processes/describe-death.ts";
import { type PipedProcess, startProcess } from "../../processes/start-process.ts";
import { EngineDied } from "../engine-died.ts";
import { threadEnvironment, usableCores } from "./cores.ts";

export interface WorkerOptions {
  /** The Python executable. */
  python: string;
  /** Threads of the tensor library; 0 is one per core. */
  threads: number;
  /** The worker's standard error is appended here. */
  logFile?: string | undefined;
}

export interface WorkerProcess extends Omit<PipedProcess, "ended" | "lastLines"> {
  /** Resolves with the reason when the process has ended; never rejects. */
  readonly ended: Promise<EngineDied>;
}

/** The same relative path from src/ and from dist/. */
const workerDirectory = fileURLToPath(new URL("../../../worker", import.meta.url));
const graceSeconds = 3;

/**
 * Sizes of torch's two caches of compiled matrix products on a CPU. Each number of rows needs its own product of about
 * 0.7 MB, ragged batches always bring new numbers, and a micro-batch uses about thirty. The default of 1024 would fill half
 * a gigabyte within a few steps and save no time. The user's environment takes precedence.
 */
const kernelCaches = { ONEDNN_PRIMITIVE_CACHE_CAPACITY: "64", LRU_CACHE_CAPACITY: "64" };

/** @throws RunError when Python cannot be started at all */
export async function startWorker({ python, threads, logFile }: WorkerOptions): Promise<WorkerProcess> {
  const worker = await startProcess({
    name: "Python",
    command: python,
    args: ["-m", "hone_worker"],
    env: {
      ...kernelCaches,
      ...process.env,
      ...threadEnvironment(threads, usableCores(), process.env),
      PYTHONPATH: [workerDirectory, process.env.PYTHONPATH]
        .filter(Boolean)
        .join(process.platform === "win32" ? ";" : ":"),
      PYTHONUNBUFFERED: "1",
      HONE_OWNER: ownerMark,
      // If Node is killed, the worker notices by it.
      HONE_PARENT_PID: String(process.pid),
    },
    channel: "pipes",
    logFile,
    graceSeconds,
  });
  return { ...worker, ended: worker.ended.then(workerDied) };
}

const hints = {
  SIGKILL:
    "Lower local.micro_batch_tokens, local.max_sample_rows or data.max_response_length, set local.gradient_checkpointing=true, or use a machine with more memory.",
  SIGSEGV:
    "Run `hone doctor`. If it happens again, try local.device=cpu or local.dtype=float32 to find the part that fails.",
  SIGILL: "Run on another machine, or point HONE_PYTHON at a Python whose torch was built for this one.",
};

export function workerDied(death: Death): EngineDied {
  const { message, hint } = describeDeath(death, { name: "the local engine's worker", hints });
  return new EngineDied(message, { hint });
}
