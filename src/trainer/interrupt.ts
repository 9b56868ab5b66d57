/** Ctrl-C: the first lets the step finish and saves, the second stops at once. */

export interface Interrupt {
  /** Aborted by the first Ctrl-C (or SIGTERM): finish the step under way, save, stop. */
  readonly requested: boolean;
  dispose(): void;
}

/**
 * @param onFirst told once, to say what happens now; undefined: the first one stops at once
 * @param onSecond must end the process's children before the process is ended
 */
export function listenForInterrupt(onFirst: (() => void) | undefined, onSecond: () => Promise<void>): Interrupt {
  let count = 0;
  const handle = (signal: NodeJS.Signals) => {
    count++;
    if (count === 1 && onFirst) onFirst();
    else void onSecond().finally(() => process.exit(signal === "SIGTERM" ? 143 : 130));
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
