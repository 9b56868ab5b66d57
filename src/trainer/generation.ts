/**
 * The producing half of asynchronous training: dispatches tasks in the sampler's order as far ahead as the quota allows,
 * and hands out each task's rollouts when the last of them has ended.
 */
import { setMaxListeners } from "node:events";
import type { Task } from "../agents/types.ts";
import { Semaphore } from "../concurrency/semaphore.ts";
import { createSampleQueue, type SamplingClient } from "../rollout/index.ts";
import type { Episode } from "../trajectories/types.ts";
import { asyncOptions } from "./async-options.ts";
import {
  attemptTasks,
  type Collection,
  describeWaiting,
  openClient,
  rolloutsAtOnce,
  sampledTokens,
  tasksOfDraw,
} from "./collect-episodes.ts";
import { comparesWithGreedy, greedyReplies } from "./gather-episodes.ts";
import type { DispatchState, Run, Ticket } from "./run.ts";
import { openShelf, type Shelved } from "./shelf.ts";

/** All rollouts of one dispatched task. */
export interface TaskResult extends Ticket {
  /** From 1. */
  draw: number;
  /** From 0. */
  epoch: number;
  episodes: readonly Episode[];
  /** The greedy reply to the task, where rewards are compared with its. */
  greedy?: readonly Episode[];
}

export interface Generation {
  /** The next task to be done, in order of arrival. Rejects with what failed, of whichever rollout. */
  take(): Promise<TaskResult>;
  /** What was taken is not trained on, as it teaches nothing: another task may take its place in the quota. */
  filtered(result: TaskResult): void;
  /** What was taken is too old: its task is dispatched again, before all others, and drawn anew. */
  stale(result: TaskResult): void;
  /** The step is done with fewer tasks than it should have had. */
  skip(tasks: number): void;
  /** The work's own result, or what fails meanwhile. */
  during<T>(work: Promise<T>): Promise<T>;
  /** Dispatches nothing more until `resume`; the rollouts under way go on. */
  pause(): void;
  /** Pauses, until no rollout is under way. */
  drain(): Promise<void>;
  /** The sampler has new weights: what waits or runs is carried over and counts against the new window. */
  synced(): void;
  resume(): void;
  /** What a checkpoint needs: results that were not taken are dispatched again. */
  state(): DispatchState;
  /** `async/*` of the window. */
  metrics(): Record<string, number>;
  /** Stops what is under way. */
  close(): Promise<void>;
}

interface Ready extends Omit<TaskResult, "episodes"> {
  shelved: Shelved;
}

export async function startGeneration(run: Run): Promise<Generation> {
  const { config, plan, progress } = run;
  const { quota, batch } = asyncOptions(config);
  const { episode_offload_dir, trajectory_group_offload_dir } = config.rllm.async_training;
  const { n } = config.rllm.rollout;
  const home = run.folder?.path ?? "run";
  const episodeShelf = await openShelf(episode_offload_dir, home, "episodes");
  const groupShelf = await openShelf(trajectory_group_offload_dir, home, "groups");
  const queue = createSampleQueue(run.sampler);
  const slots = new Semaphore(rolloutsAtOnce(config));
  const stop = new AbortController();
  const signal = AbortSignal.any([run.signal, stop.signal]);
  setMaxListeners(0, signal); // Every rollout listens.

  const { pending, ...counts } = progress.dispatch ?? freshState(progress.draws * batch);
  const again: Ticket[] = [...pending];
  const running = new Map<number, Ticket>();
  const ready: Ready[] = [];
  const clients = new Set<SamplingClient>();
  const attempts = new Set<Promise<void>>();
  /** Results that the rest of the run still has a use for. */
  let needed = (plan.totalSteps - progress.step) * batch;
  let used = 0;
  let dispatched = 0;
  let paused = false;
  let waiting = false;
  /** Since the step began: rollouts ended of tasks still running, and tokens of all. */
  let ended = 0;
  let tokens = 0;
  let wake = () => {};
  let failure = undefined as { error: unknown } | undefined;
  let fail: (error: unknown) => void = () => {};
  const failed = new Promise<never>((_, reject) => {
    fail = (error) => {
      failure ??= { error };
      stop.abort(error);
      reject(error);
      wake();
    };
  });
  failed.catch(() => {}); // Nobody may be listening just then; `take` and `drain` look at `failure`.

  function dispatch(): void {
    while (!paused && !signal.aborted && used < quota && running.size + ready.length < needed && slots.free > 0) {
      const ticket = again.shift() ?? { number: counts.next++, again: 0 };
      used++;
      dispatched++;
      running.set(ticket.number, ticket);
      const attempt = attemptTask(ticket)
        .then((result) => {
          running.delete(ticket.number);
          ended -= n;
          ready.push(result);
          dispatch();
          wake();
        })
        .catch(fail)
        .finally(() => attempts.delete(attempt));
      attempts.add(attempt);
    }
  }

  async function attemptTask(ticket: Ticket): Promise<Ready> {
    const { task, earlier, ...drawn } = taskOf(run, ticket.number);
    const collection: Omit<Collection, "purpose" | "rollouts" | "sampling"> = {
      tasks: [task],
      step: progress.step + 1,
      draw: drawn.draw,
      again: ticket.again,
      beside: { order: ticket.number, queue },
    };
    const sampled: Collection = { ...collection, purpose: "train", rollouts: 1, sampling: config.rllm.rollout.train };
    const client = openClient(run, sampled);
    const shelved = await withClient(client, () =>
      Promise.all(
        Array.from({ length: n }, async (_, index) => {
          const firstRollout = earlier * n + index;
          const episodes = await attempt({ ...sampled, firstRollout }, client);
          ended++;
          report();
          return episodeShelf.put(`dispatch-${ticket.number}-rollout-${firstRollout}`, episodes);
        }),
      ),
    );
    const greedy = comparesWithGreedy(run) ? await attemptGreedily(collection, earlier) : undefined;
    const episodes = (await Promise.all(shelved.map((get) => get()))).flat();
    return {
      ...ticket,
      ...drawn,
      ...(greedy === undefined ? {} : { greedy }),
      shelved: await groupShelf.put(`dispatch-${ticket.number}`, episodes),
    };
  }

  function attemptGreedily(collection: Omit<Collection, "purpose" | "rollouts" | "sampling">, earlier: number) {
    const greedy = { ...collection, ...greedyReplies(run), firstRollout: earlier };
    const client = openClient(run, greedy);
    return withClient(client, () => attempt(greedy, client));
  }

  async function withClient<T>(client: SamplingClient, work: () => Promise<T>): Promise<T> {
    clients.add(client);
    try {
      return await work();
    } finally {
      clients.delete(client);
    }
  }

  async function attempt(collection: Collection, client: SamplingClient): Promise<Episode[]> {
    await slots.take(signal);
    try {
      const onEpisode = (episode: Episode) => {
        tokens += sampledTokens(episode);
      };
      return await attemptTasks(run, collection, { client, signal, onEpisode });
    } finally {
      slots.give();
      dispatch();
    }
  }

  function throwFailure(): void {
    if (failure) throw failure.error;
    signal.throwIfAborted();
  }

  /** How far the step is, while the trainer waits for it. */
  function report(): void {
    if (!waiting) return;
    const total = batch * n;
    const taken = (plan.totalSteps - progress.step) * batch - needed;
    const done = Math.min(total, (taken + ready.length) * n + ended);
    run.emit({ type: "rollout-progress", step: progress.step + 1, done, total, tokens });
  }

  async function change(): Promise<void> {
    throwFailure();
    await new Promise<void>((resolve) => {
      wake = resolve;
    });
    throwFailure();
  }

  const watch = () => run.watch(() => [...clients].flatMap(describeWaiting));
  watch();
  dispatch();
  return {
    async take() {
      throwFailure();
      waiting = true;
      while (ready.length === 0) {
        report();
        await change();
      }
      waiting = false;
      const { shelved, ...next } = ready.shift()!;
      needed--;
      return { ...next, episodes: await shelved() };
    },
    filtered() {
      counts.filtered++;
      used--;
      needed++;
      dispatch();
    },
    stale({ number, again: before }) {
      counts.stale++;
      used--;
      needed++;
      again.push({ number, again: before + 1 });
      dispatch();
    },
    skip(tasks) {
      needed -= tasks;
    },
    during: (work) => Promise.race([work, failed]),
    pause() {
      paused = true;
    },
    async drain() {
      paused = true;
      while (running.size > 0) await change();
    },
    synced() {
      counts.syncs++;
      used = running.size + ready.length;
      dispatched = 0;
    },
    resume() {
      paused = false;
      tokens = 0;
      watch();
      dispatch();
    },
    state: () => ({
      ...counts,
      pending: [...again, ...running.values(), ...ready]
        .map(({ number, again: times }) => ({ number, again: times }))
        .sort((left, right) => left.number - right.number),
    }),
    metrics: () => ({
      "async/max_rollout_quota": quota,
      "async/quota_used": used,
      "async/dispatched_since_sync": dispatched,
      "async/in_flight_groups": running.size + ready.length,
      "async/buffer_pending": running.size,
      "async/buffer_qsize": ready.length,
      "async/buffer_filtered": counts.filtered,
      "async/buffer_consumed": counts.next - again.length - running.size - ready.length - counts.filtered,
      "async/dropped_stale": counts.stale,
      "async/total_syncs": counts.syncs,
    }),
    async close() {
      stop.abort(new Error("the run has ended"));
      await Promise.allSettled(attempts);
      run.watch(undefined);
      await episodeShelf.clear();
      await groupShelf.clear();
    },
  };
}

const freshState = (next: number): DispatchState => ({ next, pending: [], filtered: 0, stale: 0, syncs: 0 });

/** `earlier`: how often the task comes up in the draw before this place, so that its rollouts get other numbers. */
function taskOf(run: Run, number: number): { task: Task; earlier: number; draw: number; epoch: number } {
  const { batch } = asyncOptions(run.config);
  const draw = Math.floor(number / batch) + 1;
  const { tasks, epoch } = tasksOfDraw(run, draw);
  const position = number % batch;
  const task = tasks[position]!;
  return { task, earlier: tasks.slice(0, position).filter(({ id }) => id === task.id).length, draw, epoch };
}
