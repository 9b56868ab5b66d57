/** Results of several futures in one answer: a line each as they end, until all have or a poll's time is over. */
import { setMaxListeners } from "node:events";
import { type FutureResult, type FutureStore, failureBody } from "../futures.ts";

export interface AnswerLineOptions {
  futures: FutureStore;
  waitMs: number;
  /** The client has gone. */
  signal: AbortSignal;
}

/** Lines of JSON: first the ids, then `index` and the result of each that has one. */
export async function* answerLines(
  ids: readonly string[],
  { futures, waitMs, signal }: AnswerLineOptions,
): AsyncGenerator<Uint8Array, void, undefined> {
  const ready: unknown[] = [{ request_ids: ids }];
  let waiting = ids.length;
  let wake = (): void => {};
  setMaxListeners(0, signal);
  ids.forEach(async (id, index) => {
    const result = await futures.collect(id, waitMs, signal);
    if (result !== "pending") ready.push({ index, ...describe(result) });
    waiting--;
    wake();
  });
  while (true) {
    if (ready.length > 0) {
      const lines = ready.splice(0).map((line) => `${JSON.stringify(line)}\n`);
      yield Buffer.from(lines.join(""));
    } else if (waiting === 0) {
      return;
    } else {
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  }
}

function describe(result: FutureResult | "unknown"): Record<string, unknown> {
  if (result === "unknown") return { gone: "it was collected long ago" };
  if (result.kind === "gone") return { gone: result.why };
  if (result.kind === "failure") return failureBody(result);
  if (result.kind === "protobuf") return { protobuf: Buffer.from(result.body).toString("base64") };
  return { json: result.body };
}
