import fc from "fast-check";
import { describe, expect, it } from "vitest";
import * as windows from "./dispatch-window.ts";
import { type DispatchState, type DispatchWindow, freshState, type Ticket } from "./dispatch-window.ts";

const run = { quota: 6, needed: 20 };

/** Dispatches as much as is allowed. */
function fill(window: DispatchWindow): DispatchWindow {
  const next = windows.dispatch(window);
  return next ? fill(next.window) : window;
}

const numbers = (tickets: readonly Ticket[]) => tickets.map(({ number }) => number);
const open = ({ quota = run.quota, needed = run.needed } = {}, state: DispatchState = freshState(0)) =>
  windows.openWindow(quota, needed, state);

function takeNow(window: DispatchWindow) {
  const taken = windows.take(window);
  expect(taken).toBeDefined();
  return taken!;
}

describe("the dispatch window", () => {
  it("dispatches up to the quota, and again after an update of the sampler", () => {
    let window = fill(open());
    expect(numbers(window.running)).toEqual([0, 1, 2, 3, 4, 5]);
    for (const ticket of window.running.slice(0, 4)) window = windows.finish(window, ticket);
    window = takeNow(takeNow(window).window).window;
    expect(fill(window).running).toEqual(window.running);
    window = fill(windows.synced(window));
    expect(window).toMatchObject({ used: 6, dispatched: 2, syncs: 1, next: 8 });
  });

  it("hands out results in the order in which they finished", () => {
    let window = fill(open());
    for (const number of [3, 1]) window = windows.finish(window, { number, again: 0 });
    const first = takeNow(window);
    expect([first.ticket.number, takeNow(first.window).ticket.number]).toEqual([3, 1]);
    expect(windows.take(fill(open()))).toBeUndefined();
  });

  it("dispatches nothing while it is paused, and no more than the run needs", () => {
    expect(fill(windows.pause(open())).running).toEqual([]);
    expect(fill(windows.resume(windows.pause(open()))).running).toHaveLength(6);
    expect(fill(open({ needed: 2 })).running).toHaveLength(2);
    expect(fill(windows.skip(open({ needed: 5 }), 3)).running).toHaveLength(2);
  });

  it("replaces a task that teaches nothing, and dispatches one that is too old again, first", () => {
    let window = fill(open());
    for (const ticket of window.running.slice(0, 2)) window = windows.finish(window, ticket);
    const [first, second] = [takeNow(window), takeNow(takeNow(window).window)];
    window = fill(windows.dropUninformative(windows.dropStale(second.window, first.ticket)));
    expect(window).toMatchObject({ filtered: 1, stale: 1, needed: 20, used: 6, next: 7 });
    expect(window.running.slice(-2)).toEqual([
      { number: 0, again: 1 },
      { number: 6, again: 0 },
    ]);
  });

  it("neither loses nor repeats a task and keeps its quota, for any order of events and restarts", () => {
    const action = fc.constantFrom("finish", "take", "drop", "stale", "sync", "pause", "restart");
    const choice = fc.nat({ max: 1000 });
    fc.assert(
      fc.property(fc.array(fc.tuple(action, choice), { maxLength: 120 }), (actions) => {
        const trained: number[] = [];
        const dropped: number[] = [];
        let window = fill(open());
        for (const [name, at] of actions) {
          if (name === "finish" && window.running.length > 0) {
            window = windows.finish(window, window.running[at % window.running.length]!);
          } else if (name === "sync") window = windows.resume(windows.synced(window));
          else if (name === "pause") window = windows.pause(window);
          else if (name === "restart") {
            const needed = run.needed - trained.length;
            window = open({ needed }, JSON.parse(JSON.stringify(windows.savedState(window))) as DispatchState);
          } else {
            const taken = windows.take(window);
            if (!taken) continue;
            window = taken.window;
            if (name === "stale") window = windows.dropStale(window, taken.ticket);
            else if (name === "drop") {
              window = windows.dropUninformative(window);
              dropped.push(taken.ticket.number);
            } else trained.push(taken.ticket.number);
          }
          window = fill(window);
          expect(window.used).toBeLessThanOrEqual(run.quota);
          expect(window.running.length + window.ready.length).toBeLessThanOrEqual(Math.max(0, window.needed));
          expect(window.needed).toBe(run.needed - trained.length);
          const known = [...trained, ...dropped, ...numbers(windows.savedState(window).pending)];
          expect(known.sort((left, right) => left - right)).toEqual(Array.from({ length: window.next }, (_, n) => n));
          expect(windows.windowMetrics(window)["async/buffer_consumed"]).toBe(trained.length);
          expect(window.filtered).toBe(dropped.length);
        }
      }),
      { numRuns: 300, seed: 1 },
    );
  });

  it("continues from a checkpoint with what was dispatched and not trained on", () => {
    let window = fill(open());
    window = windows.finish(window, { number: 2, again: 0 });
    const state = windows.savedState(takeNow(window).window);
    expect(state).toEqual({
      next: 6,
      pending: [0, 1, 3, 4, 5].map((number) => ({ number, again: 0 })),
      filtered: 0,
      stale: 0,
      syncs: 0,
    });
    expect(numbers(fill(open({}, state)).running)).toEqual([0, 1, 3, 4, 5, 6]);
  });
});
