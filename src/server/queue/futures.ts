/** Long operations and their results: each gets an id immediately, and clients poll for its result. */
import { Notifier } from "../../concurrency/notifier.ts";
import { HoneError, messageOf, UserError } from "../../errors.ts";
import { type Failure, NonFiniteGradientError } from "../../tinker-protocol/failure.ts";
import { clipped } from "../http-error.ts";

export type FutureResult =
  | { kind: "json"; body: Record<string, unknown> }
  | { kind: "protobuf"; body: Uint8Array }
  | { kind: "failure"; body: Failure }
  /** There is no result; sending the request again may give one. */
  | { kind: "gone"; why: string };

export interface FutureStoreOptions {
  /** How long a result is kept before it is collected. */
  keepMs?: number;
  /** How long a result is kept after it was first collected: the answer may have been lost. */
  keepCollectedMs?: number;
  now?: () => number;
  /** Rewrites the texts of failures for clients. */
  phrase?: (text: string) => string;
}

/** Settled futures are many and kept for minutes, so they hold only their result. */
interface Future {
  result?: FutureResult;
  expires: number;
  /** Until there is a result. */
  open: { settled: Notifier; cancel: AbortController } | null;
}

/** @param phrase rewrites texts for clients */
export function describeFailure(error: unknown, phrase: (text: string) => string = (text) => text): Failure {
  const text = messageOf(error);
  const user = error instanceof UserError;
  // Only the first line of a server's error is for clients: a worker's last output or a traceback may follow.
  const message = clipped(phrase(user ? text : text.split("\n", 1).join()));
  if (!(error instanceof HoneError)) return { error: message, category: "server" };
  const failure: Failure = { error: message, category: user ? "user" : "server", code: error.code, message };
  // Other hints are for the person who runs the server.
  if (error.hint !== undefined && (user || error.code === "state_lost")) {
    failure.hint = clipped(phrase(error.hint));
    failure.error = `${message}. ${failure.hint}`;
  }
  if (error instanceof NonFiniteGradientError) failure.grad_norm = String(error.gradNorm);
  return failure;
}

export type FutureStore = ReturnType<typeof createFutureStore>;

export function createFutureStore(options: FutureStoreOptions = {}) {
  const { keepMs = 3_600_000, keepCollectedMs = 60_000, now = Date.now, phrase } = options;
  const futures = new Map<string, Future>();
  const listeners: ((id: string, result: FutureResult) => void)[] = [];
  let pending = 0;

  function settle(id: string, future: Future, result: FutureResult): void {
    if (future.result) return;
    pending--;
    future.result = result;
    future.expires = now() + keepMs;
    for (const listener of listeners) listener(id, result);
    future.open?.settled.notify();
    future.open = null;
  }

  return {
    /**
     * Runs `work` under this id. A repeated id does nothing: it is the retry of a request whose answer was lost.
     * Errors of `work` become failures: the user's mistakes as such, everything else as the server's.
     */
    start(id: string, work: (signal: AbortSignal) => Promise<FutureResult>): void {
      if (futures.has(id)) return;
      const cancel = new AbortController();
      const future: Future = { expires: Number.POSITIVE_INFINITY, open: { settled: new Notifier(), cancel } };
      futures.set(id, future);
      pending++;
      // Starts in a later turn of the event loop, so that the id is answered first.
      void Promise.resolve()
        .then(() => work(cancel.signal))
        .then(
          (result) => settle(id, future, result),
          (error: unknown) => settle(id, future, { kind: "failure", body: describeFailure(error, phrase) }),
        );
    },
    has: (id: string) => futures.has(id),
    /** The result; "pending" if `waitMs` or the signal ended first; "unknown" for an id that is not stored. */
    async collect(id: string, waitMs: number, signal?: AbortSignal): Promise<FutureResult | "pending" | "unknown"> {
      const future = futures.get(id);
      if (!future) return "unknown";
      if (waitMs > 0) await future.open?.settled.wait({ ms: waitMs, signal });
      if (!future.result) return "pending";
      future.expires = Math.min(future.expires, now() + keepCollectedMs);
      return future.result;
    },
    /** Asks the work to end early. */
    cancel: (id: string) => futures.get(id)?.open?.cancel.abort(),
    /** Called when any work ends, with its result. */
    onSettled: (listener: (typeof listeners)[number]) => void listeners.push(listener),
    /** Drops expired results. */
    sweep(): void {
      for (const [id, { expires }] of futures) if (expires <= now()) futures.delete(id);
    },
    get size() {
      return { pending, settled: futures.size - pending };
    },
  };
}
