/** Lets timers, sockets and signals have their turn while much is done in one go. */

/** Milliseconds of work between two turns of the event loop, of all who ask together. */
const budget = 3;
let since = 0;
let woken = false;
const line: (() => void)[] = [];

/**
 * To be awaited before each piece of work, where it gives something to wait for: who asks goes on while the budget of this
 * turn lasts, and else waits in line. The first in line goes on as soon as the next turn begins.
 */
export function breath(): Promise<void> | undefined {
  if (line.length === 0 && !woken) {
    // Whoever works now began to when the event loop came round last.
    woken = true;
    since = performance.now();
    setImmediate(goOn);
    return undefined;
  }
  if (performance.now() - since < budget) return undefined;
  return new Promise((resolve) => line.push(resolve));
}

function goOn(): void {
  since = performance.now();
  const next = line.shift();
  woken = next !== undefined;
  if (next === undefined) return;
  setImmediate(goOn);
  next();
}
