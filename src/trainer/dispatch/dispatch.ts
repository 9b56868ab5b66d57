/**
 * The producing half of asynchronous training: runs the rollouts of the tasks that the window dispatches, and hands out
 * each task's episodes when its last rollout has ended.
 */
import { createHash } from "node:crypto";
import { setMaxListeners } from "node:events";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { Notifier } from "../../concurrency/notifier.ts";
import { Semaphore } from "../../concurrency/semaphore.ts";
import { takeTasks } from "../../data/sampler.ts";
import { createSampleQueue } from "../../rollout/session/sample-queue.ts";
import { toJson } from "../../tracking/run-folder/json-lines.ts";
import { readEpisode } from "../../tracking/run-folder/read-episode.ts";
import { sampledTokens } from "../../trajectories/metrics.ts";
import type { Episode } from "../../trajectories/types.ts";
import type { AsyncOptions } from "../recipe/async-options.ts";
import type { Attempts } from "../rollouts/rollouts.ts";
import type { Run } from "../run.ts";
import type { DispatchState, DispatchWindow, Ticket } from "./dispatch-window.ts";
import * as windows from "./dispatch-window.ts";

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

export interface Dispatch {
  readonly window: DispatchWindow;
  /** Changes the window, and dispatches what it allows then. */
  update(change: (window: DispatchWindow) => DispatchWindow): void;
  /** The next task that has finished. Rejects with the error of any rollout that failed for good. */
  take(): Promise<TaskResult>;
  /** The result of the work, or the error of a rollout that fails meanwhile. */
  during<T>(work: Promise<T>): Promise<T>;
  /** Waits until no rollout is running. */
  drained(): Promise<void>;
  /** Resumes dispatching, for this step. */
  resume(step: number): void;
  /** Stops the running rollouts. */
  close(): Promise<void>;
}

type Ready = Omit<TaskResult, "episodes"> & { stored: StoredEpisodes };

/** @param state of an earlier process */
export async function startDispatch(
  { recipe, tasks, rollouts, models, folder, progress: { step }, signal: runSignal, emit }: Run,
  options: AsyncOptions,
  state: DispatchState,
): Promise<Dispatch> {
  const { attempts, greedy } = recipe;
  const { batch, offload } = options;
  const runName = folder?.path ?? "run";
  const episodeStore = await openEpisodeStore(offload.episodes, runName, "episodes");
  const groupStore = await openEpisodeStore(offload.groups, runName, "groups");
  const queue = createSampleQueue(models.sampler);
  const places = new Semaphore(recipe.rollouts.atOnce);
  const changed = new Notifier();
  const stop = new AbortController();
  const signal = AbortSignal.any([runSignal, stop.signal]);
  setMaxListeners(0, signal); // Every rollout listens.
  const failed = new Promise<never>((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
  failed.catch(() => {}); // Nobody may be listening at that moment; `take` and `drained` check the signal.

  let window = windows.openWindow(options.quota, (recipe.plan.totalSteps - step) * batch, state);
  const ready = new Map<number, Ready>();
  const running = new Set<Promise<void>>();
  const progress = { step: step + 1, neededAtStart: window.needed, waiting: false, endedRollouts: 0, tokens: 0 };

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
    const { draw, epoch, tasks: drawn } = takeTasks(tasks, recipe.tasks, Math.floor(ticket.number / batch) + 1);
    const position = ticket.number % batch;
    const task = drawn[position]!;
    // A task that comes up twice in a draw gets other rollout numbers the second time.
    const earlier = drawn.slice(0, position).filter(({ id }) => id === task.id).length;
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
    const attempted = await Promise.all(
      Array.from({ length: attempts.rollouts }, async (_, index) => {
        const firstRollout = earlier * attempts.rollouts + index;
        const episodes = await attempt(attempts, firstRollout);
        progress.endedRollouts++;
        report();
        return episodeStore.put(`dispatch-${ticket.number}-rollout-${firstRollout}`, episodes);
      }),
    );
    const baseline = greedy && (await attempt(greedy, earlier));
    const episodes = (await Promise.all(attempted.map((read) => read()))).flat();
    const stored = await groupStore.put(`dispatch-${ticket.number}`, episodes);
    return { ticket, draw, epoch, greedy: baseline, stored };
  }

  /** Reports the progress of the step while the trainer waits for it. */
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

  function update(change: (window: DispatchWindow) => DispatchWindow): void {
    window = change(window);
    fill();
  }

  fill();
  return {
    get window() {
      return window;
    },
    update,
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
      const { stored, ...result } = ready.get(taken.ticket.number)!;
      ready.delete(taken.ticket.number);
      return { ...result, episodes: await stored() };
    },
    during: (work) => Promise.race([work, failed]),
    async drained() {
      signal.throwIfAborted();
      while (window.running.length > 0) await nextChange();
    },
    resume(next) {
      progress.step = next;
      progress.neededAtStart = window.needed;
      progress.tokens = 0;
      update(windows.resume);
    },
    async close() {
      stop.abort(new Error("the run has ended"));
      await Promise.allSettled(running);
      await episodeStore.clear();
      await groupStore.clear();
    },
  };
}

/** Holds episodes until they are needed: in memory, or on disk to keep memory free. */
interface EpisodeStore {
  /** @param name of the file */
  put(name: string, episodes: Episode[]): Promise<StoredEpisodes>;
  /** Removes what is left. */
  clear(): Promise<void>;
}

/** Returns the episodes and removes their file. Call it once. */
type StoredEpisodes = () => Promise<Episode[]>;

const memory: EpisodeStore = { put: async (_name, episodes) => async () => episodes, clear: async () => {} };

/**
 * @param directory null: memory; else the run gets a folder in it, with one line of JSON per episode
 * @param run the run folder, which distinguishes runs that share the directory. What an earlier process left is removed
 * @param kind of the content, e.g. "episodes"
 */
async function openEpisodeStore(directory: string | null, run: string, kind: string): Promise<EpisodeStore> {
  if (directory === null) return memory;
  const mark = createHash("sha256").update(run).digest("hex").slice(0, 8);
  const folder = join(directory, `${basename(run)}-${mark}-${kind}`);
  const clear = () => rm(folder, { recursive: true, force: true });
  await clear();
  await mkdir(folder, { recursive: true });
  return {
    async put(name, episodes) {
      const file = join(folder, `${name}.jsonl`);
      await writeFile(file, episodes.map((episode) => `${toJson(episode)}\n`).join(""));
      return async () => {
        const lines = (await readFile(file, "utf8")).split("\n").filter((line) => line !== "");
        await rm(file);
        return lines.map(readEpisode);
      };
    },
    clear,
  };
}
