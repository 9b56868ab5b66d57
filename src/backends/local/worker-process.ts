/** Starts the worker of the local engine, and explains why it ended. */
import { type Death, describeDeath } from "../../processes/describe-death.ts";
import { startWorker, type WorkerProcess } from "../channel/worker-process.ts";
import { EngineDied } from "../engine-died.ts";
import { threadEnvironment, usableCores } from "./cores.ts";

interface LocalWorkerOptions {
  /** The Python executable. */
  python: string;
  /** Folders with further packages, as in PYTHONPATH. */
  packages?: string | undefined;
  /** Threads of the tensor library; 0 is one per core. */
  threads: number;
  /** More than 1: the worker of several processes, which only trains. */
  processes?: number | undefined;
  /** The worker's standard error is appended here. */
  logFile?: string | undefined;
}

/**
 * Sizes of torch's two caches of compiled matrix products on a CPU. Each number of rows needs its own product of about
 * 0.7 MB, ragged batches always bring new numbers, and a micro-batch uses about thirty. The default of 1024 would fill half
 * a gigabyte within a few steps and save no time. The user's environment takes precedence.
 */
const kernelCaches = { ONEDNN_PRIMITIVE_CACHE_CAPACITY: "64", LRU_CACHE_CAPACITY: "64" };

/** @throws RunError when Python cannot be started at all */
export const startLocalWorker = ({
  python,
  packages,
  threads,
  processes = 1,
  logFile,
}: LocalWorkerOptions): Promise<WorkerProcess> =>
  startWorker({
    python,
    packages,
    module: processes > 1 ? "hone_sharded" : "hone_worker",
    env: {
      ...kernelCaches,
      ...process.env,
      ...threadEnvironment(threads, usableCores(), process.env),
      HONE_RANKS: String(processes),
    },
    logFile,
    graceSeconds: 3,
    // With several processes, the first one does not hold weights, so its memory does not explain its end.
    died: (death) => workerDied(processes > 1 ? { ...death, residentBytes: null } : death),
  });

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
