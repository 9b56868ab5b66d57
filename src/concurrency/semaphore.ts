/** Limits how much runs at the same time. Waiting callers are served in order. */
export class Semaphore {
  private places: number;
  private readonly line = new Set<() => void>();

  constructor(count: number) {
    if (!(count >= 1)) throw new Error(`the concurrency is ${count}, but must be at least 1`);
    this.places = count;
  }

  /** Places that are not taken. */
  get free(): number {
    return this.places;
  }

  /** Takes a place as soon as one is free. Rejects with the signal's reason when it aborts first. */
  async take(signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    if (this.places > 0) {
      this.places--;
      return;
    }
    await new Promise<void>((resolve, reject) => {
      const leave = () => {
        this.line.delete(enter);
        reject(signal?.reason);
      };
      const enter = () => {
        this.line.delete(enter);
        signal?.removeEventListener("abort", leave);
        resolve();
      };
      signal?.addEventListener("abort", leave, { once: true });
      this.line.add(enter);
    });
  }

  give(): void {
    const [first] = this.line;
    if (first) first();
    else this.places++;
  }

  /** Runs `work` with a place. `work` does not start if the signal aborts before its turn. */
  async run<Value>(work: () => Promise<Value>, signal?: AbortSignal): Promise<Value> {
    await this.take(signal);
    try {
      return await work();
    } finally {
      this.give();
    }
  }
}
