/**
 * The asynchronous loop: rollouts run ahead of the updates, within a window. Tasks are dispatched, each task's
 * episodes wait until its last rollout has ended, and each training step takes a batch of them.
 *
 * The keys and the window are rLLM's. What is different, and why (for users: docs/guide/asynchronous-training.md):
 * - Staleness is bounded, not only measured: a group whose oldest token is more than `ceil(staleness_threshold)` updates old is
 *   dispatched again. Without partial rollouts the quota alone guarantees the bound.
 * - Every dispatched task is used. Sampling stops when the last step has its tasks.
 * - A rollout that fails permanently stops the run at once, even during a training step.
 * - The sampler is updated before each validation and checkpoint, so that both belong to the weights of their step, and a resumed
 *   run samples from the same weights as an uninterrupted one.
 * - Batches are sorted by dispatch number, and each dispatch draws by its position in the sampler's order. If nothing runs ahead, the
 *   run equals the synchronous one, number by number.
 */
import { createHash } from "node:crypto";
import { setMaxListeners } from "node:events";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { Notifier, Semaphore } from "../base/concurrency.ts";
import { append, mean } from "../base/values.ts";
import { takeTasks } from "../data/dataset.ts";
import { createSampleQueue } from "../rollout/sample-queue.ts";
import { readEpisode } from "../tracking/episodes.ts";
import { toJson } from "../tracking/json-lines.ts";
import { toBatch } from "../trajectories/batch.ts";
import {
  type GatheredStep,
  type GroupingOptions,
  gather,
  groupEpisodes,
  groupsWithSignal,
  nothingGathered,
  selectGroups,
} from "../trajectories/groups.ts";
import { type Episode, oldestVersion } from "../trajectories/types.ts";
import { assignCredit } from "./credit.ts";
import * as windows from "./dispatch-window.ts";
import {
  type DispatchState,
  type DispatchWindow,
  dropStale,
  dropUninformative,
  freshState,
  pause,
  savedState,
  skip,
  synced,
  type Ticket,
  windowMetrics,
} from "./dispatch-window.ts";
import { checkPrompts, watchOutage } from "./failures.ts";
import { completeStep, isDue, isNewBest, type Run, runClock, warn } from "./loop.ts";
import { microbatchesOfTasks } from "./optimizer-steps.ts";
import type { RunOptions } from "./options.ts";
import type { AsyncOptions } from "./plan.ts";
import { sampledTokens } from "./record.ts";
import type { Attempts } from "./rollouts.ts";
import { askTeachers } from "./teachers.ts";
import { updatePolicy } from "./update.ts";

// The producing half of asynchronous training: runs the rollouts of the tasks that the window dispatches, and hands
// out each task's episodes when its last rollout has ended.

/** All rollouts of one dispatched task. */
interface TaskResult {
  ticket: Ticket;
  /** From 1. */
  draw: number;
  /** From 0. */
  epoch: number;
  episodes: readonly Episode[];
  /** The greedy reply to the task, if rewards are compared with its reward. */
  greedy: readonly Episode[] | undefined;
}

interface Dispatch {
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
async function startDispatch(
  { options, tasks, rollouts, models, folder, progress: { step }, signal: runSignal, emit }: Run,
  asynchronous: AsyncOptions,
  state: DispatchState,
): Promise<Dispatch> {
  const { attempts, greedy } = options;
  const { batch, offload } = asynchronous;
  const runName = folder?.path ?? "run";
  const episodeStore = await openEpisodeStore(offload.episodes, runName, "episodes");
  const groupStore = await openEpisodeStore(offload.groups, runName, "groups");
  const queue = createSampleQueue(models.sampler);
  const places = new Semaphore(options.rollouts.atOnce);
  const changed = new Notifier();
  const stop = new AbortController();
  const signal = AbortSignal.any([runSignal, stop.signal]);
  setMaxListeners(0, signal); // Every rollout listens.
  const failed = new Promise<never>((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
  failed.catch(() => {}); // Nobody may be listening at that moment; `take` and `drained` check the signal.

  let window = windows.openWindow(asynchronous.quota, (options.plan.totalSteps - step) * batch, state);
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
    const { draw, epoch, tasks: drawn } = takeTasks(tasks, options.tasks, Math.floor(ticket.number / batch) + 1);
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

// The consuming half of asynchronous training: takes results as they arrive, until there are enough for an optimizer step.

/**
 * The first results to arrive, in the order in which their tasks were dispatched. With dynamic sampling, tasks whose
 * rewards do not differ are replaced by the next ones. Tasks that are too old are dispatched again.
 *
 * @param version of the sampler's weights
 * @returns `metrics`: how old the weights are that sampled the tasks, in updates of the sampler
 */
async function takeBatch(
  dispatch: Dispatch,
  { grouping, gathering }: Pick<RunOptions, "grouping" | "gathering">,
  { batch, maxLag }: AsyncOptions,
  version: number,
  warn: (text: string) => void,
): Promise<{ gathered: GatheredStep; metrics: Record<string, number> }> {
  const taken: TaskResult[] = [];
  const lags: number[] = [];
  const tooOld: TaskResult[] = [];
  while (lags.length < batch) {
    const result = await dispatch.take();
    const lag = version - (oldestVersion(result.episodes) ?? version);
    if (lag > maxLag) {
      tooOld.push(result);
      dispatch.update((window) => dropStale(window, result.ticket));
      continue;
    }
    taken.push(result);
    if (!gathering.dynamic || groupsWithSignal(groupEpisodes(result, grouping).groups).length > 0) {
      lags.push(lag);
      continue;
    }
    dispatch.update(dropUninformative);
    if (taken.length < gathering.maxDraws * batch) continue;
    warn(
      `only ${lags.length} of ${batch} tasks have rewards that differ, out of ${taken.length} sampled; training on these`,
    );
    dispatch.update((window) => skip(window, batch - lags.length));
    break;
  }
  if (tooOld.length > 0) {
    const names = tooOld.slice(0, 3).map(({ episodes }) => episodes[0]?.taskId);
    const more = tooOld.length > names.length ? ", ..." : "";
    warn(
      `sampled more than ${maxLag} updates ago and dispatched again: ${tooOld.length} tasks (${names.join(", ")}${more})`,
    );
  }
  const gathered = selectGroups(gatherInOrder(taken, grouping), gathering);
  checkPrompts(gathered.episodes, warn);
  const metrics: Record<string, number> = { "async/groups_consumed": lags.length };
  if (lags.length > 0) {
    metrics["async/staleness_mean"] = mean(lags);
    metrics["async/staleness_min"] = Math.min(...lags);
    metrics["async/staleness_max"] = Math.max(...lags);
  }
  return { gathered, metrics };
}

/** Draw by draw: a task that comes up in several draws counts as several tasks. */
function gatherInOrder(taken: readonly TaskResult[], grouping: GroupingOptions) {
  const draws = new Map<number, TaskResult[]>();
  for (const result of taken.toSorted((left, right) => left.ticket.number - right.ticket.number)) {
    append(draws, result.draw, result);
  }
  return [...draws.values()].reduce((gathered, results) => {
    const { epoch, greedy } = results[0]!;
    const draw = {
      epoch,
      episodes: results.flatMap((result) => result.episodes),
      greedy: greedy && results.flatMap((result) => result.greedy ?? []),
    };
    return gather(gathered, groupEpisodes(draw, grouping));
  }, nothingGathered);
}

// The asynchronous training loop: the stages of loop.ts, while rollouts continue during updates.

/** Trains until the plan is done or a stop is requested. */
export async function runAsyncLoop(run: Run, asynchronous: AsyncOptions): Promise<void> {
  const { dispatch: saved, draws } = run.progress;
  const dispatch = await startDispatch(run, asynchronous, saved ?? freshState(draws * asynchronous.batch));
  try {
    await trainOn(run, asynchronous, dispatch);
  } finally {
    await dispatch.close();
  }
}

async function trainOn(run: Run, asynchronous: AsyncOptions, dispatch: Dispatch): Promise<void> {
  const { options, models, progress } = run;
  const { plan } = options;
  const outage = watchOutage(run.outages);
  const clock = runClock(run);
  let sinceSync = 0;
  while (progress.step < plan.totalSteps) {
    const step = progress.step + 1;
    const { version } = models.sampler;
    const taken = await takeBatch(dispatch, options, asynchronous, version, (text) => warn(run, step, text));
    const { gathered } = taken;
    // After an outage these tasks are not repeated, because rollouts have continued meanwhile.
    await outage.retry({ mode: "train", step }, gathered.episodes);
    clock.lap("buffer_wait");

    const credit = assignCredit(gathered.kept, options.credit, progress.rewardMoments);
    const { batch, origins, metrics } = toBatch(credit.groups, credit.advantages, options.sequences);
    const scores = models.teaching && (await askTeachers(models.teaching, batch, origins, credit.groups));
    const update = await dispatch.during(
      updatePolicy(models, batch, options.update, {
        step,
        klWeight: progress.klWeight,
        scores,
        microbatches: microbatchesOfTasks(credit.groups, asynchronous.atOnce),
        onProgress: (done, total) => run.emit({ type: "update-progress", step, done, total }),
      }),
    );
    clock.lap("update");

    const stop = run.stopRequested();
    const isLast = step === plan.totalSteps;
    const validates = isLast || isDue(step, plan.validateEvery);
    const saves = stop || isLast || isDue(step, plan.saveEvery);
    sinceSync++;
    const ages = { "async/weight_version": version, "async/steps_since_sync": sinceSync };
    const counted = { ...taken.metrics, ...windowMetrics(dispatch.window), ...ages };
    // Validation, the checkpoint and later rollouts all use the weights of this step.
    if (sinceSync === asynchronous.stepsPerSync || validates || saves) {
      dispatch.update(pause);
      if (!asynchronous.partial || validates) await dispatch.drained();
      await models.sampler.load(await models.learner.publish());
      run.emit({ type: "weights", step, version: models.sampler.version });
      dispatch.update(synced);
      sinceSync = 0;
    }
    clock.lap("weight_sync");

    progress.dispatch = savedState(dispatch.window);
    progress.draws = Math.ceil(progress.dispatch.next / asynchronous.batch);
    const training = update.tokens.byStep(batch, origins);
    await completeStep(run, {
      step,
      isLast,
      gathered,
      credit,
      update,
      training,
      clock,
      metrics: { ...metrics, ...counted },
    });
    if (validates) run.validation = await run.validate(step);
    clock.lap("validation");
    if (saves || (await isNewBest(run, step))) {
      await run.checkpoints?.save(progress, run.validation);
    }
    clock.lap("save");
    if (stop) return;
    dispatch.resume(step + 1);
  }
}
