/**
 * Sends samples that are requested at the same time as one request to Hone's own service, which streams the results. Tinker's
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

/** Requests that are sent as one. */
const mostTogether = 64;

/** Returns a function that requests a sample. Calls of the same microtask turn are sent together. */
export function askTogether(
  connection: Connection,
): (body: Record<string, unknown>, aborted: AbortSignal) => Promise<Uint8Array> {
  let parcel: Parcel | undefined;
  return (body, aborted) => {
    if (!parcel || parcel.full) {
      const begun = createParcel(connection);
      parcel = begun;
      queueMicrotask(() => {
        parcel = undefined;
        void begun.send();
      });
    }
    return parcel.add(body, aborted);
  };
}

interface Parcel {
  add(body: Record<string, unknown>, aborted: AbortSignal): Promise<Uint8Array>;
  readonly full: boolean;
  /** Settles all that were added. */
  send(): Promise<void>;
}

function createParcel(connection: Connection): Parcel {
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
      const ids = line.request_ids;
      if (typeof line.index === "number") settle(asked[line.index]!, line);
      else if (Array.isArray(ids)) {
        asked.forEach((ask, index) => {
          ask.id = String(ids[index]);
          if (!open.has(ask)) cancel(ask);
        });
      }
    }
    return open.size === 0 ? "done" : "again";
  }

  return {
    add: (body, aborted) =>
      new Promise((resolve, reject) => {
        const giveUp = () => {
          if (!open.delete(ask)) return;
          cancel(ask);
          reject(aborted.reason);
          if (open.size === 0) nobodyWaits.abort(aborted.reason);
        };
        const forget = () => aborted.removeEventListener("abort", giveUp);
        const ask: Ask = {
          body,
          resolve(result) {
            forget();
            resolve(result);
          },
          reject(error) {
            forget();
            reject(error);
          },
        };
        open.add(ask);
        aborted.addEventListener("abort", giveUp, { once: true });
      }),
    get full() {
      return open.size >= mostTogether;
    },
    async send() {
      try {
        if (open.size > 0) await connection.persist("sample", attempt, nobodyWaits.signal);
      } catch (error) {
        for (const ask of open) ask.reject(error);
      }
    },
  };
}
