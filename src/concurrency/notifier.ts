/** Lets any number of callers wait for the next change. */
export class Notifier {
  private readonly waiting = new Set<() => void>();

  /** Resumes all waiting callers. */
  notify(): void {
    for (const resume of this.waiting) resume();
  }

  /** Resolves at the next `notify`, after `ms`, or when the signal aborts. */
  async wait({ ms, signal }: { ms?: number; signal?: AbortSignal | undefined } = {}): Promise<void> {
    if (signal?.aborted) return;
    await new Promise<void>((resolve) => {
      const resume = () => {
        clearTimeout(timer);
        this.waiting.delete(resume);
        signal?.removeEventListener("abort", resume);
        resolve();
      };
      const timer = ms === undefined ? undefined : setTimeout(resume, ms);
      this.waiting.add(resume);
      signal?.addEventListener("abort", resume, { once: true });
    });
  }
}
