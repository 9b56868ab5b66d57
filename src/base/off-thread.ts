/** Runs slow work (a grader, encoding a long text) in worker threads with a time limit per call. */
import { availableParallelism } from "node:os";
import { fileURLToPath } from "node:url";
import { Worker } from "node:worker_threads";
import { Semaphore } from "./concurrency.ts";

export interface OffThreadOptions {
  /** Time limit of a call, after the module is loaded. Default 10. A thread that takes longer is terminated. */
  timeoutSeconds?: number;
  /** Default: the number of cores. */
  threads?: number;
}

type Answer = { result: unknown } | { error: Error };

/** Time limit of loading a module in a new thread, which takes long on a busy machine. */
const loadingSeconds = 60;

/** A call took longer than its time limit. */
export class TookTooLong extends Error {
  override name = "TookTooLong";
}

/**
 * Loads a module in worker threads and returns its function as an asynchronous one. Arguments and results are copied
 * between the threads, so they must be plain data.
 *
 * @param module address of a module that exports the function, e.g. `new URL("./proof-checker.ts", import.meta.url)`
 * @param name of the export
 * @throws (each call) the function's error; TookTooLong; the signal's reason if aborted
 * @example
 * const check = offThread<[string, string], Grade>(new URL("./proof-checker.ts", import.meta.url), "check");
 * // reward: (row, reply, { signal }) => check([reply.text, row.theorem], signal)
 */
export function offThread<Arguments extends readonly unknown[], Result>(
  module: URL,
  name: string,
  { timeoutSeconds = 10, threads = availableParallelism() }: OffThreadOptions = {},
): (args: Arguments, signal?: AbortSignal) => Promise<Result> {
  const idle: Worker[] = [];
  const semaphore = new Semaphore(threads);
  return (args, signal) =>
    semaphore.run(async () => {
      const reused = idle.pop();
      const worker = reused ?? startThread(module, name);
      worker.ref();
      try {
        const answer = await ask(worker, args, { timeoutSeconds, name, signal, loaded: reused !== undefined });
        worker.unref();
        idle.push(worker);
        if ("error" in answer) throw answer.error;
        return answer.result as Result;
      } catch (error) {
        if (!idle.includes(worker)) await worker.terminate();
        throw error;
      }
    }, signal);
}

/** Threads do not inherit the loader that TypeScript needs. */
const runner = `
const { parentPort, workerData } = require("node:worker_threads");
const loaded = (async () => {
  if (workerData.loader) (await import(workerData.loader)).register();
  const found = (await import(workerData.module))[workerData.name];
  if (typeof found !== "function") throw new Error(workerData.module + " exports no function " + workerData.name);
  return found;
})();
loaded.then(() => parentPort.postMessage("loaded"), () => {});
parentPort.on("message", async (args) => {
  try {
    parentPort.postMessage({ result: await (await loaded)(...args) });
  } catch (error) {
    parentPort.postMessage({ error: error instanceof Error ? error : new Error(String(error)) });
  }
});
`;

function startThread(module: URL, name: string): Worker {
  const needsLoader = /\.[mc]?tsx?$/.test(fileURLToPath(module));
  const loader = needsLoader ? import.meta.resolve("tsx/esm/api") : undefined;
  return new Worker(runner, { eval: true, workerData: { module: module.href, name, loader } });
}

function ask(
  worker: Worker,
  args: readonly unknown[],
  options: { timeoutSeconds: number; name: string; signal: AbortSignal | undefined; loaded: boolean },
): Promise<Answer> {
  const { timeoutSeconds, name, signal, loaded } = options;
  return new Promise((resolve, reject) => {
    const fail = (error: unknown) => settle(() => reject(error));
    const listeners = {
      message: (answer: Answer | "loaded") => {
        if (answer !== "loaded") return settle(() => resolve(answer));
        clearTimeout(timer);
        timer = limit(timeoutSeconds);
      },
      error: fail,
      exit: (code: number) => fail(new Error(`the thread of ${name} ended with code ${code}`)),
    };
    const onAbort = () => fail(signal?.reason);
    const limit = (seconds: number) =>
      setTimeout(() => fail(new TookTooLong(`${name} took longer than ${seconds} s`)), seconds * 1000);
    let timer = limit(loaded ? timeoutSeconds : loadingSeconds);
    function settle(act: () => void): void {
      clearTimeout(timer);
      for (const [event, listener] of Object.entries(listeners)) worker.off(event, listener);
      signal?.removeEventListener("abort", onAbort);
      act();
    }
    signal?.addEventListener("abort", onAbort, { once: true });
    for (const [event, listener] of Object.entries(listeners)) worker.on(event, listener);
    worker.postMessage(args);
  });
}
