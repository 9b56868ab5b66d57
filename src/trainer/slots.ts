/** Bounds how much runs at the same time; who comes first is served first. */

export interface Slots {
  /** Those that nobody has or waits for. */
  readonly free: number;
  /** Resolves when there is one; rejects with the signal's reason. */
  take(signal: AbortSignal): Promise<void>;
  give(): void;
}

export function createSlots(count: number): Slots {
  let free = count;
  const line = new Set<() => void>();
  return {
    get free() {
      return free;
    },
    async take(signal) {
      signal.throwIfAborted();
      if (free > 0) {
        free--;
        return;
      }
      await new Promise<void>((resolve, reject) => {
        const leave = () => {
          line.delete(enter);
          reject(signal.reason);
        };
        const enter = () => {
          line.delete(enter);
          signal.removeEventListener("abort", leave);
          resolve();
        };
        signal.addEventListener("abort", leave, { once: true });
        line.add(enter);
      });
    },
    give() {
      const [first] = line;
      if (first) first();
      else free++;
    },
  };
}
