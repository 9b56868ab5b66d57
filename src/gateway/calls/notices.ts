/** Requests that the gateway did not follow exactly: each is counted, the first of its kind is logged. */

export interface Notices {
  /** @param name of the metric, e.g. `"ignored_parameter/user"` */
  add(name: string, text: string): void;
  /** How often, by `"gateway/{name}"`. */
  counts(): Record<string, number>;
}

export function createNotices(log: (line: string) => void): Notices {
  const counts = new Map<string, number>();
  return {
    add(name, text) {
      const before = counts.get(name) ?? 0;
      counts.set(name, before + 1);
      if (before === 0) log(`gateway: ${text} (logged once; counted as gateway/${name})`);
    },
    counts: () => Object.fromEntries([...counts].map(([name, count]) => [`gateway/${name}`, count])),
  };
}
