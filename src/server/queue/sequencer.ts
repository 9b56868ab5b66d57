/** Runs a model's operations one at a time in the order of their sequence ids, regardless of the order of arrival. */
import { UserError } from "../../errors.ts";

export interface SequencerOptions {
  /** The id that runs first; null: the first to arrive. */
  first: number | null;
  /** How long to wait for a missing id while later ones are waiting. Then all ids before the next one are skipped. */
  gapMs: number;
  /** Called when a wait for a missing id begins. */
  onGap?: (missing: number) => void;
  /** Called on each skip. */
  onSkip?: (from: number, to: number) => void;
  /** The most waiting operations. At the limit, only the next id is accepted. */
  capacity: number;
}

export function createSequencer({ first, gapMs, onGap, onSkip, capacity }: SequencerOptions) {
  const waiting = new Map<number, () => Promise<void>>();
  let next = first ?? 1;
  let begun = first !== null;
  /** Missing ids that will not arrive. */
  const lost = new Set<number>();
  let running = false;
  let gap: { missing: number; until: number; timer: NodeJS.Timeout } | undefined;

  function advance(): void {
    if (running || waiting.size === 0) return;
    while (lost.delete(next)) next++;
    const work = waiting.get(next);
    if (work) {
      clearTimeout(gap?.timer);
      gap = undefined;
      waiting.delete(next);
      next++;
      running = true;
      void work().finally(() => {
        running = false;
        advance();
      });
      return;
    }
    // Requests that arrive meanwhile do not extend the wait.
    if (gap) {
      gap.missing = next;
      return;
    }
    const timer = setTimeout(() => {
      const from = next;
      next = Math.min(...waiting.keys());
      gap = undefined;
      onSkip?.(from, next);
      advance();
    }, gapMs);
    timer.unref();
    gap = { missing: next, until: performance.now() + gapMs, timer };
    onGap?.(next);
  }

  return {
    /** Whether an operation with this id would be accepted now. */
    hasRoom: (seq: number) => seq <= next || waiting.size < capacity,
    /**
     * Runs `work` when its turn has come.
     * @throws UserError when the id's turn has been skipped, or has been taken
     */
    async run<T>(seq: number, work: () => Promise<T>): Promise<T> {
      if (!begun) next = seq;
      begun = true;
      lost.delete(seq);
      const hint = "The requests of one training client have consecutive ids.";
      if (seq < next) throw new UserError(`request ${seq} comes too late: the model is at request ${next}`, { hint });
      if (waiting.has(seq)) throw new UserError(`another request with the id ${seq} is already waiting`, { hint });
      return new Promise<T>((resolve, reject) => {
        waiting.set(seq, () => work().then(resolve, reject));
        advance();
      });
    },
    /** Does not wait for an id: its client knows that the request was lost. */
    lose(seq: number): void {
      if (seq < next || seq >= next + capacity || waiting.has(seq)) return;
      lost.add(seq);
      advance();
    },
    /** The id that runs next. */
    get next() {
      return next;
    },
    /** The id after all others so far, for a request without one. */
    get free() {
      return Math.max(next, ...[...waiting.keys()].map((seq) => seq + 1));
    },
    /** The missing id that all others wait for, and when it is skipped, in milliseconds of `performance.now()`. */
    get gap(): { missing: number; until: number } | undefined {
      return gap;
    },
    /** Nothing runs or waits. */
    get idle() {
      return !running && waiting.size === 0;
    },
  };
}
