/**
 * Runs a model's operations in the order of their sequence ids, one at a time, whatever order they arrive in. Knows
 * nothing of what they do.
 */
import { UserError } from "../errors.ts";

export interface SequencerOptions {
  /** The id that runs first. */
  first: number;
  /** How long a missing id is waited for while later ones stand by; then it is skipped. */
  gapMs: number;
  /** Told of each skip. */
  onSkip?: (from: number, to: number) => void;
  /** Operations that may stand by; beyond it only the id whose turn it is gets in. */
  capacity: number;
}

export interface Sequencer {
  /** Whether an operation of this id would be taken now. */
  hasRoom(seq: number): boolean;
  /**
   * Resolves with what `work` gives when its turn has come.
   * @throws UserError when the id's turn has been skipped, or has been taken
   */
  run<T>(seq: number, work: () => Promise<T>): Promise<T>;
  /** The id that runs next. */
  readonly next: number;
  /** An id after all that have come so far, for a request that brings none. */
  readonly free: number;
  readonly waiting: number;
  /** Nothing runs or stands by. */
  readonly idle: boolean;
}

export function createSequencer({ first, gapMs, onSkip, capacity }: SequencerOptions): Sequencer {
  const waiting = new Map<number, () => Promise<void>>();
  let next = first;
  let running = false;
  let gap: NodeJS.Timeout | undefined;

  function advance(): void {
    clearTimeout(gap);
    gap = undefined;
    if (running || waiting.size === 0) return;
    const work = waiting.get(next);
    if (work) {
      waiting.delete(next);
      next++;
      running = true;
      void work().finally(() => {
        running = false;
        advance();
      });
      return;
    }
    gap = setTimeout(() => {
      const from = next;
      next = Math.min(...waiting.keys());
      onSkip?.(from, next);
      advance();
    }, gapMs);
    gap.unref();
  }

  return {
    hasRoom: (seq) => seq <= next || waiting.size < capacity,
    run: (seq, work) =>
      new Promise((resolve, reject) => {
        if (seq < next || waiting.has(seq)) {
          const text =
            seq < next
              ? `request ${seq} comes too late: the model has gone on to ${next}`
              : `there is another request ${seq}`;
          reject(new UserError(text, { hint: "The requests of one training client carry consecutive ids." }));
          return;
        }
        waiting.set(seq, () => work().then(resolve, reject));
        advance();
      }),
    get next() {
      return next;
    },
    get free() {
      return Math.max(next, ...[...waiting.keys()].map((seq) => seq + 1));
    },
    get waiting() {
      return waiting.size;
    },
    get idle() {
      return !running && waiting.size === 0;
    },
  };
}
