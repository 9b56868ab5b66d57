/** Work that takes long (a grader, a long text to encode), in threads of its own with a time limit: nothing else waits for it. */
import { availableParallelism } from "node:os";
import { fileURLToPath } from "node:url";
import { Worker } from "node:worker_threads";
import { createLimiter } from "./limiter.ts";

export interface OffThreadOptions {
  /** Of one call. Default 10. What takes longer is ended, thread and all. */
  timeoutSeconds?: number;
  /** Default: the number of cores. */
  threads?: number;
}

type Answer = { result: unknown } | { error: Error };

/**
 * Loads a module in worker threads and gives its function as one that answers later. Arguments and results are copied
 * between the threads, so they are plain data.
 *
 * @param module address of a module that exports the function, e.g. `new URL("./proof-checker.ts", import.meta.url)`
 * @param name of the export
 * @throws Error, when called: what the function threw, or that it took too long; the signal's reason when aborted
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
  const limiter = createLimiter(threads);
  return (args, signal) =>
    limiter(async () => {
      const worker = idle.pop() ?? startThread(module, name);
      worker.ref();
      try {
        const answer = await ask(worker, args, { timeoutSeconds, name, signal });
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

/** TypeScript needs a loader, which a thread does not take over from this one. */
const runner = `
const { parentPort, workerData } = require("node:worker_threads");
const loaded = (async () => {
  if (workerData.loader) (await import(workerData.loader)).register();
  const found = (await import(workerData.module))[workerData.name];
  if (typeof found !== "function") throw new Error(workerData.module + " exports no function " + workerData.name);
  return found;
})();
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
  { timeoutSeconds, name, signal }: { timeoutSeconds: number; name: string; signal: AbortSignal | undefined },
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const fail = (error: unknown) => settle(() => reject(error));
    const listeners = {
      message: (answer: Answer) => settle(() => resolve(answer)),
      error: fail,
      exit: (code: number) => fail(new Error(`the thread of ${name} ended with code ${code}`)),
    };
    const onAbort = () => fail(signal?.reason);
    const timer = setTimeout(
      () => fail(new Error(`${name} took longer than ${timeoutSeconds} s`)),
      timeoutSeconds * 1000,
    );
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
