/** Starts containers before they are needed. */

/** How many containers were started, how many of them in advance, how many were given back unused, and how many wait. */
export interface WarmCounts {
  started: number;
  ready: number;
  unused: number;
  waiting: number;
}

export interface WarmQueue<Box> {
  /** @param size how many to keep ready after this one */
  take(size: number): Promise<Box>;
  /** Gives back those that wait. */
  close(): Promise<void>;
  counts(): WarmCounts;
}

/** Containers that nobody takes for this long are given back: between steps, or when training has ended. */
const idleMs = 120_000;
/** No more than this many wait, whatever the settings say. */
export const mostWaiting = 64;

export function warmQueue<Box extends { close(): Promise<void> }>(start: () => Promise<Box>): WarmQueue<Box> {
  const waiting: Promise<Box>[] = [];
  const counts = { started: 0, ready: 0, unused: 0 };
  let idle: NodeJS.Timeout | undefined;
  const begin = () => {
    counts.started++;
    const started = start();
    // Reported to whoever takes it.
    started.catch(() => {});
    return started;
  };
  async function close(): Promise<void> {
    clearTimeout(idle);
    const left = waiting.splice(0);
    counts.unused += left.length;
    await Promise.all(left.map((each) => each.then((box) => box.close()).catch(() => {})));
  }
  return {
    async take(size) {
      const ready = waiting.shift();
      if (ready) counts.ready++;
      // Before the others, which the engine would otherwise start first.
      const taken = ready ?? begin();
      while (waiting.length < Math.min(size, mostWaiting)) waiting.push(begin());
      clearTimeout(idle);
      if (waiting.length > 0) idle = setTimeout(close, idleMs).unref();
      return taken;
    },
    close,
    counts: () => ({ ...counts, waiting: waiting.length }),
  };
}
