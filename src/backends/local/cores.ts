/** How many cores this process may use, and whether others use them: decides how the worker's threads wait. */
import { readFileSync } from "node:fs";
import { availableParallelism, cpus, loadavg } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

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

/** Cores' worth of work that the whole machine does right now, measured for a quarter of a second. */
export async function busyCores(): Promise<number> {
  const before = cpus();
  await sleep(250);
  return cpus().reduce((total, { times }, index) => {
    const earlier = before[index]?.times ?? times;
    const idle = times.idle - earlier.idle;
    const elapsed = Object.values(times).reduce((a, b) => a + b, 0) - Object.values(earlier).reduce((a, b) => a + b, 0);
    return total + (elapsed > 0 ? 1 - idle / elapsed : 0);
  }, 0);
}

export interface Load {
  /** Cores this process may use. */
  cores: number;
  /** Cores at work right now. */
  busy: number;
  /** The one-minute load average, 0 where the system keeps none. */
  average: number;
}

export async function measureLoad(): Promise<Load> {
  return { cores: usableCores(), busy: await busyCores(), average: loadavg()[0] ?? 0 };
}

/**
 * Threads that spin between two operations are 15-20% faster on a quiet machine and up to six times slower on a shared
 * one, so they spin only when nearly all cores are free. The minute's average counts less than the moment: the set-up
 * that has just ended is in it. What the user's environment says wins.
 */
export function threadEnvironment(threads: number, load: Load, environment: NodeJS.ProcessEnv): Record<string, string> {
  const quiet = load.busy <= load.cores * 0.25 && load.average <= load.cores && threads <= load.cores;
  return {
    OMP_NUM_THREADS: String(threadCount(threads, load.cores, environment)),
    OMP_WAIT_POLICY: environment.OMP_WAIT_POLICY ?? (quiet ? "active" : "passive"),
  };
}

/** @param threads 0 is what `OMP_NUM_THREADS` says, else one per core */
export function threadCount(threads: number, cores: number, environment: NodeJS.ProcessEnv): number {
  if (threads > 0) return threads;
  const asked = Number(environment.OMP_NUM_THREADS);
  return Number.isInteger(asked) && asked > 0 ? asked : cores;
}
