import { createContext, Script } from "node:vm";

const context = createContext({ work: undefined as (() => unknown) | undefined });
const script = new Script("work()");

/**
 * Runs synchronous work in this thread, which it blocks for at most this time. For checks that are quick but for rare input,
 * such as a pattern of somebody else; `offThread` does not block, but takes longer to start.
 *
 * @returns undefined if the work takes longer
 * @throws what the work throws
 */
export function withinTime<Result>(milliseconds: number, work: () => Result): Result | undefined {
  context.work = work;
  try {
    return script.runInContext(context, { timeout: milliseconds }) as Result;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ERR_SCRIPT_EXECUTION_TIMEOUT") return undefined;
    throw error;
  } finally {
    context.work = undefined;
  }
}
