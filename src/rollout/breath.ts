/** Lets timers, sockets and signals have their turn while much is done in one go. */

/** Milliseconds of work between two turns of the event loop, of all who ask together. */
const budget = 3;
let since = 0;
let woken = false;
const line: (() => void)[] = [];

/**
 * To be awaited before each piece of work, where it gives something to wait for: who asks goes on while the budget of this
 * turn lasts, and else waits in line. Those in line go on with the next turn, before whoever comes then.
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

async function goOn(): Promise<void> {
  since = performance.now();
  woken = line.length > 0;
  if (!woken) return;
  setImmediate(goOn);
  while (line.length > 0 && performance.now() - since < budget) {
    line.shift()!();
    // Lets who goes on do the work that it was to do.
    await undefined;
  }
}
