/** Results of several futures in one answer: a line for each as it ends, until all have ended or the poll's time is over. */
import { setMaxListeners } from "node:events";
import { AsyncQueue } from "../../concurrency/async-queue.ts";
import type { FutureResult, FutureStore } from "../queue/futures.ts";

/**
 * Yields lines of JSON: first the ids, then `index` and result of each future that ends in time.
 * @param signal aborted when the client disconnects
 */
export async function* answerLines(
  ids: readonly string[],
  futures: FutureStore,
  waitMs: number,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array, void, undefined> {
  const ready = new AsyncQueue<object>();
  ready.push({ request_ids: ids });
  setMaxListeners(0, signal);
  const collections = ids.map(async (id, index) => {
    const result = await futures.collect(id, waitMs, signal);
    if (result !== "pending") ready.push({ index, ...describe(result) });
  });
  Promise.all(collections).then(
    () => ready.end(),
    (error: unknown) => ready.fail(error),
  );
  for await (const first of ready) {
    const lines = [first, ...ready.takeAll()].map((line) => `${JSON.stringify(line)}\n`);
    yield Buffer.from(lines.join(""));
  }
}

function describe(result: FutureResult | "unknown"): Record<string, unknown> {
  if (result === "unknown") return { gone: "it was collected long ago" };
  if (result.kind === "gone") return { gone: result.why };
  if (result.kind === "failure") return { ...result.body };
  if (result.kind === "protobuf") return { protobuf: Buffer.from(result.body).toString("base64") };
  return { json: result.body };
}
