/** Waiting and limits within one process: semaphore, notifier, queue, abort signals, turns of the event loop. */
import { getEventListeners, setMaxListeners } from "node:events";
import { createContext, Script } from "node:vm";

/** Limits how much runs at the same time. Waiting callers are served in order. */
export class Semaphore {
  private places: number;
  private readonly line = new Set<() => void>();

  constructor(count: number) {
    if (!(count >= 1)) throw new Error(`the concurrency is ${count}, but must be at least 1`);
    this.places = count;
  }

  /** Places that are not taken. */
  get free(): number {
    return this.places;
  }

  /** Takes a place as soon as one is free. Rejects with the signal's reason when it aborts first. */
  async take(signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    if (this.places > 0) {
      this.places--;
      return;
    }
    await new Promise<void>((resolve, reject) => {
      const leave = () => {
        this.line.delete(enter);
        reject(signal?.reason);
      };
      const enter = () => {
        this.line.delete(enter);
        signal?.removeEventListener("abort", leave);
        resolve();
      };
      signal?.addEventListener("abort", leave, { once: true });
      this.line.add(enter);
    });
  }

  give(): void {
    const [first] = this.line;
    if (first) first();
    else this.places++;
  }

  /** Runs `work` with a place. `work` does not start if the signal aborts before its turn. */
  async run<Value>(work: () => Promise<Value>, signal?: AbortSignal): Promise<Value> {
    await this.take(signal);
    try {
      return await work();
    } finally {
      this.give();
    }
  }
}

/** Lets any number of callers wait for the next change. */
export class Notifier {
  private readonly waiting = new Set<() => void>();

  /** Resumes all waiting callers. */
  notify(): void {
    for (const resume of this.waiting) resume();
  }

  /** Resolves at the next `notify`, after `ms`, or when the signal aborts. */
  async wait({ ms, signal }: { ms?: number; signal?: AbortSignal | undefined } = {}): Promise<void> {
    if (signal?.aborted) return;
    await new Promise<void>((resolve) => {
      const resume = () => {
        clearTimeout(timer);
        this.waiting.delete(resume);
        signal?.removeEventListener("abort", resume);
        resolve();
      };
      const timer = ms === undefined ? undefined : setTimeout(resume, ms);
      this.waiting.add(resume);
      signal?.addEventListener("abort", resume, { once: true });
    });
  }
}

/**
 * Passes values from callbacks to a reader, in order. The reader waits until there is a value or the queue has ended.
 *
 * @example
 * const lines = new AsyncQueue<string>();
 * stream.on("line", (line) => lines.push(line)).on("error", (error) => lines.fail(error)).on("close", () => lines.end());
 * for await (const line of lines) console.log(line);
 */
export class AsyncQueue<Value extends NonNullable<unknown>> implements AsyncIterable<Value> {
  private readonly values: Value[] = [];
  private readonly changed = new Notifier();
  private ending: { error?: unknown } | undefined;

  /** The number of values that have not been taken so far. */
  get size(): number {
    return this.values.length;
  }

  push(value: Value): void {
    this.values.push(value);
    this.changed.notify();
  }

  /** The reader ends after the values pushed so far. The first `end` or `fail` counts. */
  end(): void {
    this.ending ??= {};
    this.changed.notify();
  }

  /** The reader throws `error` after the values pushed so far. */
  fail(error: unknown): void {
    this.ending ??= { error };
    this.changed.notify();
  }

  /** The reader ends when the work has ended, and throws what it throws. The result only says that it has ended. */
  endWith(work: Promise<unknown>): Promise<void> {
    return work.then(
      () => this.end(),
      (error: unknown) => this.fail(error),
    );
  }

  /** The next value, or undefined after the end. */
  async take(): Promise<Value | undefined> {
    while (true) {
      const value = this.values.shift();
      if (value !== undefined) return value;
      if (this.ending && "error" in this.ending) throw this.ending.error;
      if (this.ending) return undefined;
      await this.changed.wait();
    }
  }

  /** Takes all values that are in the queue now. */
  takeAll(): Value[] {
    return this.values.splice(0);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Value, void, undefined> {
    for (let value = await this.take(); value !== undefined; value = await this.take()) yield value;
  }
}

// A pool of abort controllers, for work that starts and ends thousands of times a second.
//
// Node 20 gives each new signal a hidden class of its own among the long-lived objects. Everything that the signal refers
// to (the whole request) then survives until the next full garbage collection.

const idle: AbortController[] = [];
const maxIdle = 1024;

/** Stays registered: Node rebuilds a table of listeners that is emptied and filled again. */
const noop = () => {};

export function takeAbortController(): AbortController {
  const known = idle.pop();
  if (known !== undefined) return known;
  const controller = new AbortController();
  controller.signal.addEventListener("abort", noop);
  return controller;
}

/** Call it once, when the work is over. A controller that was aborted, or whose signal still has listeners, is not reused. */
export function giveBackAbortController(controller: AbortController): void {
  const { signal } = controller;
  if (signal.aborted || idle.length >= maxIdle || getEventListeners(signal, "abort").length > 1) return;
  idle.push(controller);
}

/** Joins two signals. Call `release` when the work is over. */
export function abortedByEither(
  left: AbortSignal | undefined,
  right: AbortSignal | undefined,
): { signal: AbortSignal; release: () => void } {
  if (left === undefined || right === undefined) return { signal: left ?? right ?? never, release: () => {} };
  const either = takeAbortController();
  const stop = () => either.abort(left.aborted ? left.reason : right.reason);
  for (const each of [left, right]) {
    if (each.aborted) stop();
    else each.addEventListener("abort", stop, { once: true });
  }
  const release = () => {
    for (const each of [left, right]) each.removeEventListener("abort", stop);
    giveBackAbortController(either);
  };
  return { signal: either.signal, release };
}

const never = new AbortController().signal;
setMaxListeners(0, never);

/**
 * Waits for work that does not listen to the signal, but no longer than until it aborts. The work goes on unseen.
 * @throws the signal's reason as soon as it aborts
 */
export async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return work;
  let leave = () => {};
  const left = new Promise<never>((_, reject) => {
    leave = () => reject(signal.reason);
    if (signal.aborted) leave();
    else signal.addEventListener("abort", leave, { once: true });
  });
  try {
    return await Promise.race([work, left]);
  } finally {
    signal.removeEventListener("abort", leave);
  }
}

const context = createContext({ work: undefined as (() => unknown) | undefined });
const script = new Script("work()");

/**
 * Runs synchronous work in this thread, which it blocks for at most this time. For checks that are quick but for rare input,
 * such as a pattern of somebody else; `offThread` does not block, but takes longer to start.
 *
 * @returns undefined if the work takes longer
 * @throws what the work throws
 */
export function withinTime<Result>(milliseconds: number, work: () => Result): Result | undefined {
  context.work = work;
  try {
    return script.runInContext(context, { timeout: milliseconds }) as Result;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ERR_SCRIPT_EXECUTION_TIMEOUT") return undefined;
    throw error;
  } finally {
    context.work = undefined;
  }
}

// Lets timers, sockets and signals run during long work.

/** Milliseconds of work between two turns of the event loop, shared by all callers. */
const budget = 3;
let since = 0;
let scheduled = false;
const line: (() => void)[] = [];

/**
 * Await this before each piece of work. Returns undefined while the 3 ms of this turn of the event loop last; otherwise a
 * promise for the next turn. Waiting callers resume in order, before new ones.
 */
export function yieldIfDue(): Promise<void> | undefined {
  if (line.length === 0 && !scheduled) {
    // The first work since the last turn.
    scheduled = true;
    since = performance.now();
    setImmediate(nextTurn);
    return undefined;
  }
  if (performance.now() - since < budget) return undefined;
  return new Promise((resolve) => line.push(resolve));
}

async function nextTurn(): Promise<void> {
  since = performance.now();
  scheduled = line.length > 0;
  if (!scheduled) return;
  setImmediate(nextTurn);
  while (performance.now() - since < budget) {
    const resume = line.shift();
    if (!resume) return;
    resume();
    // Lets the resumed caller do its work.
    await undefined;
  }
}
