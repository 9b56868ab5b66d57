/** How many cores this process may use, and how the worker's threads wait for each other. */
import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";

/** Cores that this process may use: the affinity mask, and a container's quota where there is one. */
export function usableCores(): number {
  return Math.max(1, Math.min(availableParallelism(), Math.ceil(containerQuota() ?? Number.POSITIVE_INFINITY)));
}

function containerQuota(): number | null {
  try {
    const [quota, period] = readFileSync("/sys/fs/cgroup/cpu.max", "utf8").trim().split(" ").map(Number);
    return quota !== undefined && period !== undefined && quota > 0 ? quota / period : null;
  } catch {
    return null; // No such limit on this system.
  }
}

/**
 * Threads that spin for ever between two operations are a little faster on a quiet machine and up to twenty times slower
 * on a shared one; those that sleep at once are 20% slower. These spin for a moment, then sleep: within 2% of the
 * fastest, and never far from it. What the user's environment says wins.
 */
export function threadEnvironment(
  threads: number,
  cores: number,
  environment: NodeJS.ProcessEnv,
): Record<string, string> {
  const chosen = environment.OMP_WAIT_POLICY !== undefined || environment.GOMP_SPINCOUNT !== undefined;
  return {
    OMP_NUM_THREADS: String(threadCount(threads, cores, environment)),
    ...(chosen ? {} : { OMP_WAIT_POLICY: "passive", GOMP_SPINCOUNT: "100000" }),
  };
}

/** @param threads 0 is what `OMP_NUM_THREADS` says, else one per core */
export function threadCount(threads: number, cores: number, environment: NodeJS.ProcessEnv): number {
  if (threads > 0) return threads;
  const asked = Number(environment.OMP_NUM_THREADS);
  return Number.isInteger(asked) && asked > 0 ? asked : cores;
}
