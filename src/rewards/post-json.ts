/** One JSON request to a server that grades, tried again where trying again can help. */
import { setTimeout as sleep } from "node:timers/promises";
import { RunError } from "../errors.ts";

export interface PostOptions {
  headers?: Readonly<Record<string, string>>;
  /** Further tries after a failed one. */
  retries: number;
  /** Between tries, doubled each time. */
  pauseSeconds: number;
  /** Of one try. */
  timeoutSeconds: number;
  signal: AbortSignal;
}

/** An answer that will not change by asking again. */
class Refused extends RunError {}

/**
 * Tries again after a lost connection, a time-out and the states 408, 429 and 5xx.
 * @throws RunError naming the server, the tries and what the last one met; the signal's reason when aborted
 */
export async function postJson(
  url: string,
  body: unknown,
  { headers, retries, pauseSeconds, timeoutSeconds, signal }: PostOptions,
): Promise<{ value: unknown; retries: number }> {
  for (let attempt = 0; ; attempt++) {
    try {
      const response = await fetch(url, {
        method: "POST",
        headers: { "content-type": "application/json", ...headers },
        body: JSON.stringify(body),
        signal: AbortSignal.any([signal, AbortSignal.timeout(timeoutSeconds * 1000)]),
      });
      const text = await response.text();
      if (response.ok) return { value: readJson(url, text), retries: attempt };
      const said = `${url} answered ${response.status}: ${text.slice(0, 300)}`;
      if (response.status !== 408 && response.status !== 429 && response.status < 500) throw new Refused(said);
      throw new Error(said);
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof Refused) throw error;
      if (attempt >= retries) {
        throw new RunError(`no answer from ${url} in ${attempt + 1} tries: ${describe(error)}`, { cause: error });
      }
    }
    await sleep(pauseSeconds * 2 ** attempt * 1000, undefined, { signal });
  }
}

function readJson(url: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Refused(`${url} answered what is no JSON: ${text.slice(0, 300)}`);
  }
}

/** fetch hides what happened in the cause. */
function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? `${error.message}: ${error.cause.message}` : error.message;
}
