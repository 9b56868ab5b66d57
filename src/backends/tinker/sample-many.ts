/**
 * Sends samples that are requested at the same time as one request to a service with `sampleMany`, which streams the results. Tinker's
 * protocol takes two requests for each.
 */
import type { Connection } from "./connection.ts";
import { futureFailure, LostResultError } from "./service-errors.ts";

interface Pending {
  body: Record<string, unknown>;
  /** The service's id, once known. */
  id?: string;
  resolve(result: Uint8Array): void;
  reject(error: unknown): void;
}

/** Requests that are sent as one, and about how many bytes of images; the service takes 256 MiB. */
const batchLimits = { requests: 256, imageBytes: 64 * 2 ** 20 };

/** Returns a function that requests a sample with `bytes` of images. Calls of the same microtask turn are sent together. */
export function sampleMany(
  connection: Connection,
): (body: Record<string, unknown>, aborted: AbortSignal, bytes?: number) => Promise<Uint8Array> {
  let batch: ReturnType<typeof createBatch> | undefined;
  let total = 0;
  return (body, aborted, bytes = 0) => {
    if (!batch || batch.open.size >= batchLimits.requests || total + bytes > batchLimits.imageBytes) {
      const begun = createBatch(connection);
      batch = begun;
      total = 0;
      queueMicrotask(() => {
        if (batch === begun) batch = undefined;
        void begun.send();
      });
    }
    total += bytes;
    return batch.add(body, aborted);
  };
}

function createBatch(connection: Connection) {
  /** The samples that have no answer so far. */
  const open = new Set<Pending>();
  const abandoned = new AbortController();

  function cancel({ id }: Pending): void {
    if (id !== undefined) connection.post("cancel_future", { request_id: id }).catch(() => {});
  }

  function settle(sample: Pending, answer: Record<string, unknown>): void {
    const { protobuf, gone } = answer;
    if (!open.delete(sample)) return;
    if (typeof protobuf === "string") sample.resolve(Buffer.from(protobuf, "base64"));
    else if (typeof gone === "string") sample.reject(new LostResultError(sample.id ?? "a sample", gone));
    else sample.reject(futureFailure(answer));
  }

  /** Unanswered requests are sent again; the service recognizes them by their numbers. */
  async function attempt(): Promise<"done" | "again"> {
    const asked = [...open];
    const requests = asked.map(({ body }) => body);
    for await (const line of connection.lines("asample_many", { requests }, abandoned.signal)) {
      const { index, request_ids: ids } = line;
      const answered = typeof index === "number" ? asked[index] : undefined;
      if (answered) settle(answered, line);
      if (!Array.isArray(ids)) continue;
      for (const [place, sample] of asked.entries()) {
        sample.id = String(ids[place]);
        if (!open.has(sample)) cancel(sample);
      }
    }
    return open.size === 0 ? "done" : "again";
  }

  return {
    open,
    async add(body: Record<string, unknown>, aborted: AbortSignal): Promise<Uint8Array> {
      let giveUp = () => {};
      try {
        return await new Promise<Uint8Array>((resolve, reject) => {
          const sample: Pending = { body, resolve, reject };
          giveUp = () => {
            if (!open.delete(sample)) return;
            cancel(sample);
            reject(aborted.reason);
            if (open.size === 0) abandoned.abort(aborted.reason);
          };
          open.add(sample);
          aborted.addEventListener("abort", giveUp, { once: true });
        });
      } finally {
        aborted.removeEventListener("abort", giveUp);
      }
    },
    /** Settles all that were added. */
    async send(): Promise<void> {
      try {
        if (open.size > 0) await connection.persist("sample", attempt, abandoned.signal);
      } catch (error) {
        for (const sample of open) sample.reject(error);
      }
    },
  };
}
