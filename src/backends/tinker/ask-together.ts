/**
 * Sends samples that are requested at the same time as one request to a service with `sampleMany`, which streams the results. Tinker's
 * protocol takes two requests for each.
 */
import type { Connection } from "./connection.ts";
import { futureFailure, LostResultError } from "./service-errors.ts";

interface Ask {
  body: Record<string, unknown>;
  /** The service's id, once known. */
  id?: string;
  resolve(result: Uint8Array): void;
  reject(error: unknown): void;
}

/** Requests that are sent as one, and about how many bytes of images; the service takes 256 MiB. */
const mostTogether = { requests: 256, imageBytes: 64 * 2 ** 20 };

/** Returns a function that requests a sample with `bytes` of images. Calls of the same microtask turn are sent together. */
export function askTogether(
  connection: Connection,
): (body: Record<string, unknown>, aborted: AbortSignal, bytes?: number) => Promise<Uint8Array> {
  let parcel: ReturnType<typeof createParcel> | undefined;
  let total = 0;
  return (body, aborted, bytes = 0) => {
    if (!parcel || parcel.open.size >= mostTogether.requests || total + bytes > mostTogether.imageBytes) {
      const begun = createParcel(connection);
      parcel = begun;
      total = 0;
      queueMicrotask(() => {
        if (parcel === begun) parcel = undefined;
        void begun.send();
      });
    }
    total += bytes;
    return parcel.add(body, aborted);
  };
}

function createParcel(connection: Connection) {
  /** Those that have no answer so far. */
  const open = new Set<Ask>();
  const nobodyWaits = new AbortController();

  function cancel({ id }: Ask): void {
    if (id !== undefined) connection.post("cancel_future", { request_id: id }).catch(() => {});
  }

  function settle(ask: Ask, answer: Record<string, unknown>): void {
    const { protobuf, gone } = answer;
    if (!open.delete(ask)) return;
    if (typeof protobuf === "string") ask.resolve(Buffer.from(protobuf, "base64"));
    else if (typeof gone === "string") ask.reject(new LostResultError(ask.id ?? "a sample", gone));
    else ask.reject(futureFailure(answer));
  }

  /** Unanswered requests are sent again; the service recognizes them by their numbers. */
  async function attempt(): Promise<"done" | "again"> {
    const asked = [...open];
    const requests = asked.map(({ body }) => body);
    for await (const line of connection.lines("asample_many", { requests }, nobodyWaits.signal)) {
      const { index, request_ids: ids } = line;
      const answered = typeof index === "number" ? asked[index] : undefined;
      if (answered) settle(answered, line);
      if (!Array.isArray(ids)) continue;
      for (const [place, ask] of asked.entries()) {
        ask.id = String(ids[place]);
        if (!open.has(ask)) cancel(ask);
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
          const ask: Ask = { body, resolve, reject };
          giveUp = () => {
            if (!open.delete(ask)) return;
            cancel(ask);
            reject(aborted.reason);
            if (open.size === 0) nobodyWaits.abort(aborted.reason);
          };
          open.add(ask);
          aborted.addEventListener("abort", giveUp, { once: true });
        });
      } finally {
        aborted.removeEventListener("abort", giveUp);
      }
    },
    /** Settles all that were added. */
    async send(): Promise<void> {
      try {
        if (open.size > 0) await connection.persist("sample", attempt, nobodyWaits.signal);
      } catch (error) {
        for (const ask of open) ask.reject(error);
      }
    },
  };
}
