/**
 * The producing half of asynchronous training: runs the rollouts of the tasks that the window dispatches, and hands out
 * each task's episodes when its last rollout has ended.
 */
import { setMaxListeners } from "node:events";
import { Notifier } from "../concurrency/notifier.ts";
import { Semaphore } from "../concurrency/semaphore.ts";
import type { Dataset } from "../data/types.ts";
import { createSampleQueue } from "../rollout/index.ts";
import type { RunEvent } from "../tracking/events.ts";
import type { Episode } from "../trajectories/types.ts";
import type { AsyncOptions } from "./async-options.ts";
import type { DispatchState, Ticket } from "./dispatch-window.ts";
import * as windows from "./dispatch-window.ts";
import type { Recipe } from "./recipe.ts";
import { type Attempts, type Rollouts, sampledTokens } from "./rollouts.ts";
import type { Models } from "./run.ts";
import { openShelf, type Shelved } from "./shelf.ts";
import { takeTasks } from "./take-tasks.ts";

/** All rollouts of one dispatched task. */
export interface TaskResult {
  ticket: Ticket;
  /** From 1. */
  draw: number;
  /** From 0. */
  epoch: number;
  episodes: readonly Episode[];
  /** The greedy reply to the task, if rewards are compared with its reward. */
  greedy: readonly Episode[] | undefined;
}

export interface DispatchParts {
  tasks: Dataset<unknown>;
  rollouts: Rollouts;
  sampler: Models["sampler"];
  /** The run's name in a shared folder of offloaded episodes. */
  runName: string;
  signal: AbortSignal;
  emit(event: RunEvent): void;
}

export interface Dispatch {
  /** The next task that has finished. Rejects with the error of any rollout that failed for good. */
  take(): Promise<TaskResult>;
  /** A taken task teaches nothing, so another one may take its place in the quota. */
  dropUninformative(): void;
  /** A taken task is too old. It is dispatched again before all others, and drawn anew. */
  dropStale(ticket: Ticket): void;
  /** The step ends with fewer tasks than it should have. */
  skip(tasks: number): void;
  /** The result of the work, or the error of a rollout that fails meanwhile. */
  during<T>(work: Promise<T>): Promise<T>;
  /** Dispatches nothing more until `resume`; running rollouts go on. */
  pause(): void;
  /** Waits until no rollout is running. */
  drained(): Promise<void>;
  /** The sampler has new weights. */
  synced(): void;
  /** Goes on, for this step. */
  resume(step: number): void;
  state(): DispatchState;
  /** `async/*` of the window. */
  metrics(): Record<string, number>;
  /** Stops the running rollouts. */
  close(): Promise<void>;
}

type Ready = Omit<TaskResult, "episodes"> & { shelved: Shelved };

/**
 * @param state of an earlier process
 * @param firstStep the step that the first tasks are for, counted from 1
 */
export async function startDispatch(
  parts: DispatchParts,
  recipe: Pick<Recipe, "plan" | "tasks" | "attempts" | "greedy" | "rollouts">,
  options: AsyncOptions,
  state: DispatchState,
  firstStep: number,
): Promise<Dispatch> {
  const { rollouts, emit } = parts;
  const { attempts, greedy } = recipe;
  const { batch } = options;
  const episodeShelf = await openShelf(options.offload.episodes, parts.runName, "episodes");
  const groupShelf = await openShelf(options.offload.groups, parts.runName, "groups");
  const queue = createSampleQueue(parts.sampler);
  const places = new Semaphore(recipe.rollouts.atOnce);
  const changed = new Notifier();
  const stop = new AbortController();
  const signal = AbortSignal.any([parts.signal, stop.signal]);
  setMaxListeners(0, signal); // Every rollout listens.
  const failed = new Promise<never>((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
  failed.catch(() => {}); // Nobody may be listening just then; `take` and `drained` look at the signal.

  let window = windows.openWindow(options.quota, (recipe.plan.totalSteps - firstStep + 1) * batch, state);
  const ready = new Map<number, Ready>();
  const running = new Set<Promise<void>>();
  const progress = { step: firstStep, neededAtStart: window.needed, waiting: false, endedRollouts: 0, tokens: 0 };

  function fill(): void {
    while (!signal.aborted && places.free > 0) {
      const next = windows.dispatch(window);
      if (!next) return;
      window = next.window;
      const task = runTask(next.ticket)
        .then((result) => {
          window = windows.finish(window, next.ticket);
          ready.set(next.ticket.number, result);
          progress.endedRollouts -= attempts.rollouts;
          fill();
          changed.notify();
        })
        .catch((error: unknown) => stop.abort(error))
        .finally(() => running.delete(task));
      running.add(task);
    }
  }

  async function runTask(ticket: Ticket): Promise<Ready> {
    const { draw, epoch, tasks } = takeTasks(parts.tasks, recipe.tasks, Math.floor(ticket.number / batch) + 1);
    const position = ticket.number % batch;
    const task = tasks[position]!;
    // A task that comes up twice in a draw gets other rollout numbers the second time.
    const earlier = tasks.slice(0, position).filter(({ id }) => id === task.id).length;
    const collection = { tasks: [task], step: progress.step, draw, again: ticket.again };
    const attempt = (how: Attempts, firstRollout: number) =>
      places
        .run(
          () =>
            rollouts.attempt(
              { ...collection, ...how, rollouts: 1, firstRollout },
              { queue, order: ticket.number, signal },
              (episode) => {
                progress.tokens += sampledTokens(episode);
              },
            ),
          signal,
        )
        .finally(fill);
    const shelved = await Promise.all(
      Array.from({ length: attempts.rollouts }, async (_, index) => {
        const firstRollout = earlier * attempts.rollouts + index;
        const episodes = await attempt(attempts, firstRollout);
        progress.endedRollouts++;
        report();
        return episodeShelf.put(`dispatch-${ticket.number}-rollout-${firstRollout}`, episodes);
      }),
    );
    const baseline = greedy && (await attempt(greedy, earlier));
    const episodes = (await Promise.all(shelved.map((get) => get()))).flat();
    const lot = await groupShelf.put(`dispatch-${ticket.number}`, episodes);
    return { ticket, draw, epoch, greedy: baseline, shelved: lot };
  }

  /** Reports how far the step is, while the trainer waits for it. */
  function report(): void {
    if (!progress.waiting) return;
    const { step, neededAtStart, endedRollouts, tokens } = progress;
    const total = batch * attempts.rollouts;
    const finished = neededAtStart - window.needed + window.ready.length;
    const done = Math.min(total, finished * attempts.rollouts + endedRollouts);
    emit({ type: "rollout-progress", step, done, total, tokens });
  }

  async function nextChange(): Promise<void> {
    await changed.wait({ signal });
    signal.throwIfAborted();
  }

  fill();
  return {
    async take() {
      signal.throwIfAborted();
      progress.waiting = true;
      let taken = windows.take(window);
      while (!taken) {
        report();
        await nextChange();
        taken = windows.take(window);
      }
      progress.waiting = false;
      window = taken.window;
      const { shelved, ...result } = ready.get(taken.ticket.number)!;
      ready.delete(taken.ticket.number);
      return { ...result, episodes: await shelved() };
    },
    dropUninformative() {
      window = windows.dropUninformative(window);
      fill();
    },
    dropStale(ticket) {
      window = windows.dropStale(window, ticket);
      fill();
    },
    skip(tasks) {
      window = windows.skip(window, tasks);
    },
    during: (work) => Promise.race([work, failed]),
    pause() {
      window = windows.pause(window);
    },
    async drained() {
      signal.throwIfAborted();
      while (window.running.length > 0) await nextChange();
    },
    synced() {
      window = windows.synced(window);
    },
    resume(step) {
      window = windows.resume(window);
      progress.step = step;
      progress.neededAtStart = window.needed;
      progress.tokens = 0;
      fill();
    },
    state: () => windows.savedState(window),
    metrics: () => windows.windowMetrics(window),
    async close() {
      stop.abort(new Error("the run has ended"));
      await Promise.allSettled(running);
      await episodeShelf.clear();
      await groupShelf.clear();
    },
  };
}
