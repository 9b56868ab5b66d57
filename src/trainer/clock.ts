/** Wall-clock seconds of a step, by phase. */

export interface Clock {
  /** Ends the phase since the last lap under this name. */
  lap(name: string): void;
  /** `time/{phase}` and `time/step`, seconds. */
  metrics(): Record<string, number>;
}

export function startClock(): Clock {
  const start = performance.now();
  let last = start;
  const laps: Record<string, number> = {};
  return {
    lap(name) {
      const now = performance.now();
      laps[name] = (laps[name] ?? 0) + (now - last) / 1000;
      last = now;
    },
    metrics() {
      const phases = Object.entries(laps).map(([name, seconds]) => [`time/${name}`, seconds]);
      return { ...Object.fromEntries(phases), "time/step": (last - start) / 1000 };
    },
  };
}
