/** Lets timers, sockets and signals run during long work. */

/** Milliseconds of work between two turns of the event loop, shared by all callers. */
const budget = 3;
let since = 0;
let scheduled = false;
const line: (() => void)[] = [];

/**
 * Await this before each piece of work. Returns undefined while the 3 ms of this turn of the event loop last; otherwise a
 * promise for the next turn. Waiting callers resume in order, before new ones.
 */
export function yieldIfDue(): Promise<void> | undefined {
  if (line.length === 0 && !scheduled) {
    // The first work since the last turn.
    scheduled = true;
    since = performance.now();
    setImmediate(nextTurn);
    return undefined;
  }
  if (performance.now() - since < budget) return undefined;
  return new Promise((resolve) => line.push(resolve));
}

async function nextTurn(): Promise<void> {
  since = performance.now();
  scheduled = line.length > 0;
  if (!scheduled) return;
  setImmediate(nextTurn);
  while (performance.now() - since < budget) {
    const resume = line.shift();
    if (!resume) return;
    resume();
    // Lets the resumed caller do its work.
    await undefined;
  }
}
