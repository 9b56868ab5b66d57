/** Wall-clock seconds of the training loop, by phase. Each moment belongs to exactly one phase. */
export interface Clock {
  /** Ends a phase, which began with the last lap. */
  lap(name: string): void;
  /** Ends the step: `time/{phase}` and their sum `time/step`, in seconds. The next step begins here. */
  endStep(): Record<string, number>;
}

/** @param onLap called with each phase as it ends */
export function startClock(onLap: (name: string, seconds: number) => void = () => {}): Clock {
  let last = performance.now();
  let laps: Record<string, number> = {};
  return {
    lap(name) {
      const now = performance.now();
      const seconds = (now - last) / 1000;
      laps[name] = (laps[name] ?? 0) + seconds;
      last = now;
      onLap(name, seconds);
    },
    endStep() {
      const seconds = Object.values(laps).reduce((sum, lap) => sum + lap, 0);
      const phases = Object.entries(laps).map(([name, lap]) => [`time/${name}`, lap]);
      laps = {};
      return { ...Object.fromEntries(phases), "time/step": seconds };
    },
  };
}
