/**
 * Resolves when the process is asked to stop: by Ctrl-C, or by SIGTERM.
 * @param ignoreInterrupt continues after Ctrl-C, which a terminal sends to a run and to the processes beside it
 */
export function untilSignal({ ignoreInterrupt = false } = {}): Promise<void> {
  return new Promise((resolve) => {
    process.once("SIGTERM", () => resolve());
    if (ignoreInterrupt) process.on("SIGINT", () => {});
    else process.once("SIGINT", () => resolve());
  });
}
