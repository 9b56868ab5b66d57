/** Reports warnings of many rollouts once per cause: the first in full, the others as a count. */

export interface WarningSummary {
  /** @param cause equal for warnings that are counted together, e.g. the kind of failure and its message */
  add(cause: string, text: string): void;
  /** Reports the causes that came more than once. */
  end(): void;
}

/** @param where the others can be found, e.g. "the episodes of step 3 have the details" */
export function summarizeWarnings(warn: (text: string) => void, where: string): WarningSummary {
  const counts = new Map<string, number>();
  return {
    add(cause, text) {
      const count = (counts.get(cause) ?? 0) + 1;
      counts.set(cause, count);
      if (count === 1) warn(text);
    },
    end() {
      for (const [cause, count] of counts) {
        if (count > 1) warn(`${count - 1} more: ${cause} (${where})`);
      }
    },
  };
}
