/** Before each file of unit tests, because they share a process: how stack traces are written is as before the first file. */
interface Kept {
  limit: number;
  prepare: typeof Error.prepareStackTrace;
}

const shared = globalThis as { keptStacks?: Kept };
const kept = shared.keptStacks ?? { limit: Error.stackTraceLimit, prepare: Error.prepareStackTrace };
shared.keptStacks = kept;
Error.stackTraceLimit = kept.limit;
Error.prepareStackTrace = kept.prepare;
// tsx, which loads users' files, enables them.
process.setSourceMapsEnabled(false);
