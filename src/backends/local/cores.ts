/** How many cores this process may use, and how the worker's threads wait. */
import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";

/** Cores that this process may use: the affinity mask, and a container's quota. */
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
 * How threads wait between two operations. Threads that spin for milliseconds are up to fifty times slower when another
 * program uses a core; threads that sleep immediately are 50% slower on an idle machine. These spin for about 0.1 ms and
 * then sleep: at most a tenth slower than always spinning on an idle machine, and about twice the time of one thread on a
 * busy one. The user's environment takes precedence.
 */
export function threadEnvironment(
  threads: number,
  cores: number,
  environment: NodeJS.ProcessEnv,
): Record<string, string> {
  const count = { OMP_NUM_THREADS: String(threadCount(threads, cores, environment)) };
  if (environment.OMP_WAIT_POLICY !== undefined || environment.GOMP_SPINCOUNT !== undefined) return count;
  return { ...count, OMP_WAIT_POLICY: "passive", GOMP_SPINCOUNT: "3000" };
}

/** @param threads 0: `OMP_NUM_THREADS` if set, otherwise one per core */
export function threadCount(threads: number, cores: number, environment: NodeJS.ProcessEnv): number {
  if (threads > 0) return threads;
  const asked = Number(environment.OMP_NUM_THREADS);
  return Number.isInteger(asked) && asked > 0 ? asked : cores;
}
