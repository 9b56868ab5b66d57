/** Limits the work of a comparison: 2,000 characters of a reply could otherwise take minutes. */

class OutOfBudget extends Error {}

/** Comparisons are synchronous, so one counter is enough. A step takes about a microsecond. */
let left = Number.POSITIVE_INFINITY;
let depth = 0;

const deepest = 60;

/** @returns undefined if the work takes more steps */
export function withBudget<Result>(steps: number, work: () => Result): Result | undefined {
  left = steps;
  depth = 0;
  try {
    return work();
  } catch (error) {
    if (error instanceof OutOfBudget) return undefined;
    throw error;
  } finally {
    left = Number.POSITIVE_INFINITY;
  }
}

/** @throws OutOfBudget if no steps are left */
export function spend(steps: number): void {
  left -= steps;
  if (left < 0) throw new OutOfBudget();
}

/** @throws OutOfBudget if calls are nested too deeply */
export function nested<Result>(work: () => Result): Result {
  if (++depth > deepest) throw new OutOfBudget();
  const result = work();
  depth--;
  return result;
}
