/** What the gateway did otherwise than a client asked: counted every time, told once. */

export interface Notices {
  /** @param name of the metric, e.g. `"ignored_parameter/user"` */
  add(name: string, text: string): void;
  /** `"gateway/{name}"` to how often. */
  counts(): Record<string, number>;
}

export function createNotices(log: (line: string) => void): Notices {
  const counts = new Map<string, number>();
  return {
    add(name, text) {
      const before = counts.get(name) ?? 0;
      counts.set(name, before + 1);
      if (before === 0) log(`gateway: ${text} (told once; counted as gateway/${name})`);
    },
    counts: () => Object.fromEntries([...counts].map(([name, count]) => [`gateway/${name}`, count])),
  };
}
