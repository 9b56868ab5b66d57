/** Runs the same work once for several callers, and aborts it when no caller waits for it. */
export function shareWork<Value>() {
  const running = new Map<string, { result: Promise<Value>; waiting: number; stop: AbortController }>();

  /** @throws the signal's reason if aborted */
  return async (
    key: string,
    signal: AbortSignal | undefined,
    start: (signal: AbortSignal) => Promise<Value>,
  ): Promise<Value> => {
    signal?.throwIfAborted();
    let work = running.get(key);
    if (work === undefined) {
      const stop = new AbortController();
      const result = start(stop.signal).finally(() => running.get(key)?.stop === stop && running.delete(key));
      work = { result, waiting: 0, stop };
      running.set(key, work);
    }
    const shared = work;
    shared.waiting++;
    let leave = () => {};
    const left = new Promise<never>((_, reject) => {
      leave = () => reject(signal?.reason);
      signal?.addEventListener("abort", leave, { once: true });
    });
    try {
      return await Promise.race([shared.result, left]);
    } finally {
      signal?.removeEventListener("abort", leave);
      if (--shared.waiting === 0) {
        if (running.get(key) === shared) running.delete(key);
        shared.stop.abort(signal?.reason);
      }
    }
  };
}
