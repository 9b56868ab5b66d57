/** Ctrl-C: the first one finishes the step and saves, the second one stops at once. Before the first step, the first one stops at once. */

export interface Interrupt {
  /** Set by the first Ctrl-C (or SIGTERM): finish the current step, save, stop. */
  readonly requested: boolean;
  dispose(): void;
}

/**
 * @param onFirst called once, to report what happens; if it is undefined or returns false, the first one stops at once
 * @param onSecond must end the process's children before the process ends
 */
export function listenForInterrupt(onFirst: (() => boolean) | undefined, onSecond: () => Promise<void>): Interrupt {
  let count = 0;
  const handle = (signal: NodeJS.Signals) => {
    count++;
    if (count === 1 && onFirst?.()) return;
    void onSecond().finally(() => process.exit(signal === "SIGTERM" ? 143 : 130));
  };
  process.on("SIGINT", handle);
  process.on("SIGTERM", handle);
  return {
    get requested() {
      return count > 0;
    },
    dispose() {
      process.off("SIGINT", handle);
      process.off("SIGTERM", handle);
    },
  };
}
