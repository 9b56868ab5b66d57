/** Makes sides take turns, so that a temporary slowdown of the machine affects all of them. */
export interface Turns {
  /** Waits until it is this side's turn. */
  take(side: number): Promise<void>;
  /** Gives the turn to the next side that has not left. */
  pass(side: number): void;
  /** Gives up its turn and takes no further turns. */
  leave(side: number): void;
}

export function takeTurns(count: number): Turns {
  const there = new Set(Array.from({ length: count }, (_, side) => side));
  const waiting = new Map<number, () => void>();
  let current = 0;
  const next = (side: number) => {
    if (side !== current) return;
    const order = Array.from({ length: count }, (_, index) => (side + 1 + index) % count);
    current = order.find((other) => there.has(other)) ?? side;
    waiting.get(current)?.();
  };
  return {
    take: (side) =>
      new Promise((resolve) => {
        if (side === current) return resolve();
        waiting.set(side, () => {
          waiting.delete(side);
          resolve();
        });
      }),
    pass: next,
    leave(side) {
      there.delete(side);
      next(side);
    },
  };
}
