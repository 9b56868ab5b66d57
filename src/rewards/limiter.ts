/** So many pieces of work at a time, the others in line. */

export type Limiter = <Value>(work: () => Promise<Value>, signal?: AbortSignal) => Promise<Value>;

/** Work whose signal aborts while it waits in line is never begun: it rejects with the signal's reason. */
export function createLimiter(concurrency: number): Limiter {
  if (!(concurrency >= 1)) throw new Error(`a concurrency of ${concurrency}: it is at least 1`);
  let running = 0;
  const line: (() => void)[] = [];
  return async (work, signal) => {
    if (running >= concurrency) await new Promise<void>((resolve) => line.push(resolve));
    else running++;
    try {
      signal?.throwIfAborted();
      return await work();
    } finally {
      const next = line.shift();
      if (next) next();
      else running--;
    }
  };
}
