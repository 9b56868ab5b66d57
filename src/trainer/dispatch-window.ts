/**
 * Decides which tasks asynchronous training dispatches: how far ahead of the trainer, in which order, and which tasks
 * again. Only data and pure functions; async-loop.ts runs the rollouts.
 */
/** One dispatch of a task: its number in the sampler's order, from 0, and how often it was dispatched before. */
export interface Ticket {
  number: number;
  again: number;
}

/** What a checkpoint keeps. */
export interface DispatchState {
  /** Number of the next new dispatch. */
  next: number;
  /** Dispatched, but not trained on. */
  pending: readonly Ticket[];
  /** Counted since training began: dropped by dynamic sampling, too old, updates of the sampler's weights. */
  filtered: number;
  stale: number;
  syncs: number;
}

export interface DispatchWindow extends Omit<DispatchState, "pending"> {
  /** Tasks that may be dispatched from one update of the sampler's weights to the next, including those carried over. */
  readonly quota: number;
  /** Tasks to dispatch again, before all new ones. */
  readonly repeats: readonly Ticket[];
  readonly running: readonly Ticket[];
  /** Finished, but not taken; in the order in which they finished. */
  readonly ready: readonly Ticket[];
  /** Results that the rest of the run still needs. */
  readonly needed: number;
  /** How much of the quota is used. */
  readonly used: number;
  /** Since the last update of the sampler's weights. */
  readonly dispatched: number;
  readonly paused: boolean;
}

export function openWindow(quota: number, needed: number, { pending, ...saved }: DispatchState): DispatchWindow {
  const empty = { running: [], ready: [], used: 0, dispatched: 0, paused: false };
  return { ...saved, ...empty, quota, needed, repeats: pending };
}

export const freshState = (next: number): DispatchState => ({ next, pending: [], filtered: 0, stale: 0, syncs: 0 });

/** Dispatches one task; undefined while nothing may be dispatched. */
export function dispatch(window: DispatchWindow): { window: DispatchWindow; ticket: Ticket } | undefined {
  const { dispatched, needed, next, paused, quota, ready, repeats, running, used } = window;
  if (paused || used >= quota || running.length + ready.length >= needed) return undefined;
  const [first, ...rest] = repeats;
  const ticket = first ?? { number: next, again: 0 };
  return {
    ticket,
    window: {
      ...window,
      next: first ? next : next + 1,
      repeats: rest,
      running: [...running, ticket],
      used: used + 1,
      dispatched: dispatched + 1,
    },
  };
}

/** A running task has finished. */
export const finish = (window: DispatchWindow, ticket: Ticket): DispatchWindow => ({
  ...window,
  running: window.running.filter(({ number }) => number !== ticket.number),
  ready: [...window.ready, ticket],
});

/** The trainer takes the task that finished first; undefined if none has. */
export function take(window: DispatchWindow): { window: DispatchWindow; ticket: Ticket } | undefined {
  const [ticket, ...ready] = window.ready;
  return ticket && { ticket, window: { ...window, ready, needed: window.needed - 1 } };
}

/** A task that was taken has no training signal, so another one may replace it. */
export const dropUninformative = (window: DispatchWindow): DispatchWindow => ({
  ...window,
  filtered: window.filtered + 1,
  used: window.used - 1,
  needed: window.needed + 1,
});

/** A task that was taken is too old. It is dispatched again, and its rollouts are sampled again. */
export const dropStale = (window: DispatchWindow, { number, again }: Ticket): DispatchWindow => ({
  ...window,
  stale: window.stale + 1,
  used: window.used - 1,
  needed: window.needed + 1,
  repeats: [...window.repeats, { number, again: again + 1 }],
});

/** A step ends with fewer tasks than it should have. */
export const skip = (window: DispatchWindow, tasks: number): DispatchWindow => ({
  ...window,
  needed: window.needed - tasks,
});

export const pause = (window: DispatchWindow): DispatchWindow => ({ ...window, paused: true });

export const resume = (window: DispatchWindow): DispatchWindow => ({ ...window, paused: false });

/** The sampler has new weights. What runs or waits is carried over and counts against the new quota. */
export const synced = (window: DispatchWindow): DispatchWindow => ({
  ...window,
  syncs: window.syncs + 1,
  used: window.running.length + window.ready.length,
  dispatched: 0,
});

/** What a checkpoint keeps: results that were not taken are dispatched again. */
export function savedState({ next, repeats, running, ready, filtered, stale, syncs }: DispatchWindow): DispatchState {
  const pending = [...repeats, ...running, ...ready].sort((left, right) => left.number - right.number);
  return { next, pending, filtered, stale, syncs };
}

/** `async/*` of the window. */
export function windowMetrics(window: DispatchWindow): Record<string, number> {
  const { dispatched, filtered, next, quota, ready, repeats, running, stale, syncs, used } = window;
  return {
    "async/max_rollout_quota": quota,
    "async/quota_used": used,
    "async/dispatched_since_sync": dispatched,
    "async/in_flight_groups": running.length + ready.length,
    "async/buffer_pending": running.length,
    "async/buffer_qsize": ready.length,
    "async/buffer_filtered": filtered,
    "async/buffer_consumed": next - repeats.length - running.length - ready.length - filtered,
    "async/dropped_stale": stale,
    "async/total_syncs": syncs,
  };
}
