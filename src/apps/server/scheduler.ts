/**
 * Shares one engine between clients: training jobs one at a time, in turns by model; samples in batches, in turns by client.
 * Neither kind of work keeps the other waiting for long.
 */
import { setMaxListeners } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import type { Sample, SampleRequest, Sampler } from "../../backends/engine.ts";
import { RunError } from "../../base/errors.ts";
import { append } from "../../base/values.ts";

export interface SchedulerOptions {
  /** The most sequences that are sampled at the same time. */
  maxRows: number;
  /** The most waiting sequences, of all clients together. */
  maxWaitingRows: number;
  now?: () => number;
}

interface Job {
  rows: number;
  run: () => Promise<void>;
}

/** Jobs of several owners: each owner's in order, owners in turns. */
function turnQueue() {
  const queues = new Map<string, Job[]>();
  let rows = 0;
  return {
    get rows() {
      return rows;
    },
    push(owner: string, job: Job) {
      rows += job.rows;
      append(queues, owner, job);
    },
    /** The first job of the owner whose turn it is, if `fits`; that owner then goes to the end. */
    take(fits: (job: Job) => boolean): Job | undefined {
      const [owner, queue] = queues.entries().next().value ?? [];
      const job = queue?.[0];
      if (owner === undefined || !queue || !job || !fits(job)) return undefined;
      rows -= job.rows;
      queue.shift();
      queues.delete(owner);
      if (queue.length > 0) queues.set(owner, queue);
      return job;
    },
  };
}

/** The longest that training pauses for samples. */
const longestPauseMs = 30_000;

export type Scheduler = ReturnType<typeof createScheduler>;

export function createScheduler({ maxRows, maxWaitingRows, now = () => performance.now() }: SchedulerOptions) {
  const training = turnQueue();
  const sampling = turnQueue();
  let busy = false;
  let rows = 0;
  let entered = 0;
  let idle = (): void => {};

  /** Training and sampling get equal time: after a job of d ms, samples in progress have d ms for themselves. */
  async function pauseForSamples(ms: number): Promise<void> {
    if (rows === 0) return;
    const done = new AbortController();
    idle = () => done.abort();
    await sleep(Math.min(ms, longestPauseMs), undefined, { signal: done.signal }).catch(() => {});
    idle = () => {};
  }

  async function trainAll(): Promise<void> {
    if (busy) return;
    busy = true;
    for (let job = training.take(() => true); job; job = training.take(() => true)) {
      const begin = now();
      await job.run();
      await pauseForSamples(now() - begin);
    }
    busy = false;
  }

  function sampleAll(): void {
    // A request with more sequences than places runs alone.
    const fits = (job: Job) => rows === 0 || rows + job.rows <= maxRows;
    for (let job = sampling.take(fits); job; job = sampling.take(fits)) {
      const started = job;
      rows += started.rows;
      void started.run().finally(() => {
        rows -= started.rows;
        if (rows === 0) idle();
        sampleAll();
      });
    }
  }

  const queued = <T>(job: () => Promise<T>, push: (run: () => Promise<void>) => void): Promise<T> =>
    new Promise((resolve, reject) => push(() => job().then(resolve, reject)));

  return {
    /** Runs a job that computes on the weights; jobs of one owner in order, owners in turns. */
    train<T>(owner: string, job: () => Promise<T>): Promise<T> {
      const result = queued(job, (run) => training.push(owner, { rows: 1, run }));
      void trainAll();
      return result;
    },
    /** Reserves places for sequences. Returns the function that frees them, or null when all are taken. */
    enter(count: number): (() => void) | null {
      if (entered > 0 && entered + count > maxRows + maxWaitingRows) return null;
      entered += count;
      let freed = false;
      return () => {
        if (!freed) entered -= count;
        freed = true;
      };
    },
    /** Runs a job that samples `count` sequences as soon as there is room for them. */
    sample<T>(owner: string, count: number, job: () => Promise<T>): Promise<T> {
      const result = queued(job, (run) => sampling.push(owner, { rows: count, run }));
      sampleAll();
      return result;
    },
    get state() {
      return { trainingWaiting: training.rows, training: Number(busy), rowsWaiting: sampling.rows, rows };
    },
  };
}

// Turns the simultaneous requests of one client into one engine call, so that the whole batch begins together, as it does
// in the client's own process. Otherwise it would begin with a part, and the others would join at later tokens.

interface Call {
  requests: readonly SampleRequest[];
  ended: Sample[];
  missing: number;
  resolve(samples: Sample[]): void;
  reject(error: unknown): void;
}

export type SampleGatherer = ReturnType<typeof createSampleGatherer>;

export function createSampleGatherer() {
  /** The requests of this turn of the event loop. */
  const open = new Map<Sampler, Map<string, Call[]>>();

  return {
    /**
     * The samples of the requests, in their order.
     * @param owner whose requests may be put together: an error fails all of them
     */
    sample: (
      sampler: Sampler,
      owner: string,
      requests: readonly SampleRequest[],
      signal: AbortSignal,
    ): Promise<readonly Sample[]> =>
      new Promise((resolve, reject) => {
        // The engine adds a listener for each sequence.
        setMaxListeners(0, signal);
        const own = requests.map((request) => ({ ...request, signal }));
        const call: Call = { requests: own, ended: [], missing: own.length, resolve, reject };
        const byOwner = open.get(sampler) ?? new Map<string, Call[]>();
        if (byOwner.size === 0) {
          open.set(sampler, byOwner);
          setImmediate(() => {
            open.delete(sampler);
            for (const calls of byOwner.values()) void run(sampler, calls);
          });
        }
        append(byOwner, owner, call);
      }),
  };
}

/** Answers each call when the last of its sequences has ended. */
async function run(sampler: Sampler, calls: readonly Call[]): Promise<void> {
  const places = calls.flatMap((call) => call.requests.map((_, index) => ({ call, index })));
  let failure: unknown = new RunError("the engine ended the call without answering it");
  try {
    for await (const sample of sampler.sample(calls.flatMap(({ requests }) => requests))) {
      const { call, index } = places[sample.request]!;
      call.ended[index] = sample;
      call.missing--;
      if (call.missing === 0) call.resolve(call.ended);
    }
  } catch (error) {
    failure = error;
  }
  for (const call of calls) if (call.missing > 0) call.reject(failure);
}
