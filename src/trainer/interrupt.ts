/** Ctrl-C: the first lets the step finish and saves, the second stops at once. Before the first step every one does. */

export interface Interrupt {
  /** Aborted by the first Ctrl-C (or SIGTERM): finish the step under way, save, stop. */
  readonly requested: boolean;
  dispose(): void;
}

/**
 * @param onFirst called once, to say what happens now; when it returns false, or is undefined, the first stops at once
 * @param onSecond must end the process's children before the process is ended
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
