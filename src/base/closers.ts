/** Closes what was opened, the last one first. */
import { messageOf, RunError } from "./errors.ts";

/** @param cause why the opening failed, if it did */
type Close = (cause?: unknown) => unknown;

export interface Closers {
  add(close: Close): void;
  /**
   * Closes everything that was added since the last call, also after failures.
   * @throws the failure, or an error that names each of several reasons
   */
  close(): Promise<void>;
  /** Closes everything because the opening failed. @throws this error; failures to close are warnings */
  abandon(error: unknown): Promise<never>;
}

export function createClosers(): Closers {
  const closers: Close[] = [];

  async function closeAll(cause?: unknown): Promise<unknown[]> {
    const failures: unknown[] = [];
    for (const close of closers.splice(0).reverse()) {
      try {
        await close(cause);
      } catch (error) {
        failures.push(error);
      }
    }
    return failures;
  }

  return {
    add: (close) => void closers.push(close),
    async close() {
      const failures = await closeAll();
      // A program that has ended fails each request with the same reason.
      const reasons = [...new Set(failures.map(messageOf))];
      if (reasons.length > 1) throw new RunError(`closing failed: ${reasons.join("; ")}`, { cause: failures[0] });
      if (failures.length > 0) throw failures[0];
    },
    async abandon(error) {
      const reasons = new Set((await closeAll(error)).map(messageOf));
      reasons.delete(messageOf(error));
      for (const reason of reasons) process.emitWarning(`closing failed: ${reason}`);
      throw error;
    },
  };
}
