import fc from "fast-check";
import { expect, test, vi } from "vitest";
import { createSequencer } from "./live-models.ts";

const options = { first: 1, gapMs: 20, capacity: 100 };

test("operations run in the order of their ids, one at a time, in any order of arrival", async () => {
  await fc.assert(
    fc.asyncProperty(fc.shuffledSubarray([1, 2, 3, 4, 5, 6, 7], { minLength: 7 }), async (arrivals) => {
      const sequencer = createSequencer(options);
      const ran: number[] = [];
      let running = 0;
      const all = arrivals.map((seq) =>
        sequencer.run(seq, async () => {
          expect(++running).toBe(1);
          await Promise.resolve();
          ran.push(seq);
          running--;
          return seq * 10;
        }),
      );
      expect(await Promise.all(all)).toEqual(arrivals.map((seq) => seq * 10));
      expect(ran).toEqual([1, 2, 3, 4, 5, 6, 7]);
      expect([sequencer.next, sequencer.idle]).toEqual([8, true]);
    }),
  );
});

test("a failed operation does not block the next", async () => {
  const sequencer = createSequencer(options);
  const failed = sequencer.run(1, async () => {
    throw new Error("no");
  });
  await expect(failed).rejects.toThrow("no");
  expect(await sequencer.run(2, async () => "yes")).toBe("yes");
});

test("an id that does not arrive is skipped after a while and refused later", async () => {
  vi.useFakeTimers();
  const skipped: [number, number][] = [];
  const sequencer = createSequencer({ ...options, onSkip: (from, to) => skipped.push([from, to]) });
  const ran: number[] = [];
  const later = [4, 3].map((seq) => sequencer.run(seq, async () => ran.push(seq)));
  await vi.advanceTimersByTimeAsync(19);
  expect(ran).toEqual([]);
  await vi.advanceTimersByTimeAsync(1);
  await Promise.all(later);
  vi.useRealTimers();
  expect(ran).toEqual([3, 4]);
  expect(skipped).toEqual([[1, 3]]);
  await expect(sequencer.run(2, async () => {})).rejects.toThrow(/too late/);
});

test("an id that is known to be lost is not waited for, and runs if it arrives after all", async () => {
  const sequencer = createSequencer({ ...options, gapMs: 3_600_000 });
  const ran: number[] = [];
  const run = (seq: number) => sequencer.run(seq, async () => void ran.push(seq));
  const third = run(3);
  expect(sequencer.gap?.missing).toBe(1);
  sequencer.lose(1);
  expect(sequencer.gap?.missing).toBe(2);
  for (const seq of [1, 2, 3, 4, 1e9]) sequencer.lose(seq);
  await third;
  await run(4);
  expect([ran, sequencer.next, sequencer.gap]).toEqual([[3, 4], 5, undefined]);
});

test("without a first id, the first to arrive runs", async () => {
  const sequencer = createSequencer({ ...options, first: null });
  expect(await sequencer.run(41, async () => "yes")).toBe("yes");
  expect(sequencer.next).toBe(42);
});

test("a full queue accepts only the id whose turn it is", () => {
  const sequencer = createSequencer({ ...options, capacity: 2 });
  for (const seq of [2, 3]) void sequencer.run(seq, async () => {});
  expect([sequencer.hasRoom(4), sequencer.hasRoom(1)]).toEqual([false, true]);
  expect(sequencer.free).toBe(4);
});

test("a model waits once for each gap, however many requests arrive meanwhile", async () => {
  vi.useFakeTimers();
  const gaps: number[] = [];
  const sequencer = createSequencer({ ...options, onGap: (missing) => gaps.push(missing) });
  const ran: number[] = [];
  const work = (seq: number) => sequencer.run(seq, async () => void ran.push(seq));
  // 1 and 2 are missing: one wait for both, which the arrival of 4 and 5 does not prolong.
  const all = [work(3)];
  for (const seq of [4, 5]) {
    await vi.advanceTimersByTimeAsync(8);
    all.push(work(seq));
  }
  expect([ran, sequencer.gap?.missing]).toEqual([[], 1]);
  await vi.advanceTimersByTimeAsync(4);
  await Promise.all(all);
  expect([ran, gaps, sequencer.gap]).toEqual([[3, 4, 5], [1], undefined]);
  // The missing request ends the wait when it arrives late.
  const late = work(7);
  await vi.advanceTimersByTimeAsync(10);
  await Promise.all([work(6), late]);
  vi.useRealTimers();
  expect([ran, gaps]).toEqual([
    [3, 4, 5, 6, 7],
    [1, 6],
  ]);
});
