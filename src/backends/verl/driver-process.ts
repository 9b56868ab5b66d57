/** Starts the driver of the verl backend, and explains why it ended. */
import { type Death, describeDeath } from "../../processes/describe-death.ts";
import { startWorker, type WorkerProcess } from "../channel/worker-process.ts";
import { EngineDied } from "../engine-died.ts";
import { threadEnvironment, usableCores } from "../local/cores.ts";

/** Ray ends its processes one after the other. */
const graceSeconds = 30;

/**
 * @param packages a folder with further Python packages
 * @throws RunError when Python cannot be started at all
 */
export const startDriver = (
  python: string,
  { ranks, usesGpu }: { ranks: number; usesGpu: boolean },
  logFile: string | undefined,
  packages?: string | undefined,
): Promise<WorkerProcess> =>
  startWorker({
    python,
    module: "hone_verl",
    packages,
    env: {
      ...process.env,
      ...(usesGpu ? {} : { VERL_PLATFORM: "cpu" }),
      // The driver passes these variables to the workers, which share the cores of a machine.
      ...threadEnvironment(0, Math.max(1, Math.floor(usableCores() / ranks)), process.env),
    } as Record<string, string>,
    logFile,
    graceSeconds,
    died: driverDied,
  });

const hints = {
  SIGKILL:
    "Lower trainer.n_gpus_per_node, actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu or data.max_response_length, or use machines with more memory.",
};

/** If the raylet ends, Ray also ends the driver. Ray prints one line about this, and then the indented log of the raylet. */
export function driverDied(death: Death): EngineDied {
  const lastLines = death.lastLines.filter((line) => !/^\s+\[/.test(line));
  const { message, hint } = describeDeath({ ...death, lastLines }, { name: "the verl driver", hints });
  return new EngineDied(message, { hint });
}
