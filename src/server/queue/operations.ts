/** Starts operations behind futures: logged, counted, and for a model in the order of its requests. */
import { HoneError, messageOf } from "../../errors.ts";
import type { ServerContext } from "../context.ts";
import { HttpError } from "../http-error.ts";
import type { LiveModel } from "../models/live-models.ts";
import type { Sessions } from "../state/sessions.ts";
import type { FutureResult } from "./futures.ts";

/** The most bytes of waiting requests, of all models together. */
const maxWaitingBytes = 1 << 29;

export interface Operation {
  kind: string;
  /** What it works on, for the log: " of 3 datums". */
  details?: string;
  work(signal: AbortSignal): Promise<FutureResult>;
}

export function createOperations({ futures, log, metrics, boot, now }: ServerContext, sessions: Sessions) {
  let waitingBytes = 0;

  /** @param owner the model or sampler, for the log */
  function start(id: string, owner: string, { kind, details = "", work }: Operation): void {
    const begin = performance.now();
    futures.start(id, async (signal) => {
      let outcome = "failed";
      try {
        const result = await work(signal);
        outcome = result.kind === "gone" ? "gone" : "ok";
        const seconds = ((performance.now() - begin) / 1000).toFixed(2);
        if (kind !== "sample") log.info(owner, `${kind}${details}, ${seconds} s`);
        return result;
      } catch (error) {
        const [first = "", ...rest] = messageOf(error).split("\n");
        if (error instanceof HoneError && error.details) rest.push(error.details);
        log.warn(owner, `${kind}${details} failed: ${first}`, rest.length === 0 ? undefined : rest.join("\n"));
        throw error;
      } finally {
        metrics.add("hone_operations_total", { kind, outcome });
        metrics.add("hone_operation_seconds_total", { kind }, (performance.now() - begin) / 1000);
      }
    });
  }

  return {
    start,

    /**
     * Accepts an operation of a model. Its failures are reported by its future.
     * @param seq its place among the model's requests; null: after all others
     * @param bytes of the request, counted while it waits
     * @throws HttpError 429 when the queue is full
     */
    accept(model: LiveModel, seq: number | null, bytes: number, operation: Operation): Record<string, unknown> {
      sessions.touch(model.session.id);
      const number = seq ?? model.sequencer.free;
      const id = `${model.id}:${number}@${boot}`;
      const answer = { request_id: id, model_id: model.id };
      if (futures.has(id)) return answer;
      const full = waitingBytes + bytes > maxWaitingBytes && number !== model.sequencer.next;
      if (full || !model.sequencer.hasRoom(number)) {
        metrics.add("hone_refused_total", { queue: "training" });
        throw new HttpError(429, `the queue of ${model.id} is full; try again`);
      }
      waitingBytes += bytes;
      model.record.lastRequestAt = now().toISOString();
      const work = async (signal: AbortSignal) => {
        try {
          return await model.sequencer.run(number, () => operation.work(signal));
        } finally {
          waitingBytes -= bytes;
          model.markEnded(number);
        }
      };
      start(id, model.id, { ...operation, work });
      return answer;
    },
  };
}
