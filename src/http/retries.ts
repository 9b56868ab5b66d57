/** When a request is repeated, how long to wait before, and the words for why it failed. */
import { setTimeout as sleep } from "node:timers/promises";

export interface RetryOptions {
  /** Maximum number of retries after the first attempt. */
  retries: number;
  /** Delay before the first retry; doubles with each retry. A server's `Retry-After` takes precedence. */
  pauseSeconds: number;
  /** Ends the waiting; the attempt itself must listen to it. */
  signal?: AbortSignal | undefined;
  /** Whether a retry may succeed. */
  isTemporary(error: unknown): boolean;
  /** Whether the failed attempt made progress: retries and delays are then counted from the start again. */
  hasProgressed?(): Promise<boolean>;
  /** Called before each retry, for counting and reporting. */
  onRetry?(error: unknown): void;
}

/** An error with the delay that the server asked for. */
interface DelayedByServer {
  retryAfterSeconds?: number | undefined;
}

/** Longer delays that a server asks for are ignored. */
const maxAskedSeconds = 60;

/** @throws the last attempt's error; the signal's reason when aborted */
export async function withRetries<T>(attempt: () => Promise<T>, options: RetryOptions): Promise<T> {
  const { retries, pauseSeconds, signal, isTemporary, hasProgressed, onRetry } = options;
  let failures = 0;
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      signal?.throwIfAborted();
      failures = (await hasProgressed?.()) ? 1 : failures + 1;
      if (failures > retries || !isTemporary(error)) throw error;
      onRetry?.(error);
      const asked = (error as DelayedByServer | undefined)?.retryAfterSeconds ?? 0;
      const seconds = asked > 0 && asked <= maxAskedSeconds ? asked : pauseSeconds * 2 ** (failures - 1);
      await sleep(seconds * 1000, undefined, { signal }).catch(() => {});
      signal?.throwIfAborted();
    }
  }
}

/** Whether another attempt may get another status. The other client errors would be the same again. */
export const isTemporaryStatus = (status: number): boolean => status >= 500 || [408, 409, 425, 429].includes(status);

/** @param header the value of `Retry-After`: seconds or a date */
export function retryAfterSeconds(header: string | null | undefined): number | undefined {
  if (!header) return undefined;
  const seconds = /^\d+$/.test(header) ? Number(header) : (Date.parse(header) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, seconds) : undefined;
}

/** Why a request failed, in a few words. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  // fetch puts the reason into the cause.
  if (error.cause instanceof Error && /^(fetch failed|terminated)$/.test(error.message)) return reasonOf(error.cause);
  return error.message === "" ? ((error as NodeJS.ErrnoException).code ?? error.name) : error.message;
}
