/** Posts JSON to a server that grades, with retries. */
import { setTimeout as sleep } from "node:timers/promises";
import { RunError, UserError } from "../errors.ts";

export interface PostOptions {
  headers?: Readonly<Record<string, string>> | undefined;
  /** Retries after the first attempt. */
  retries: number;
  /** Delay before the first retry; doubles with each retry. */
  pauseSeconds: number;
  /** Time limit of one attempt. */
  timeoutSeconds: number;
  signal: AbortSignal;
}

/** Client errors that may not occur on a retry. */
const temporary = [408, 409, 425, 429];

/**
 * Retries after a lost connection, a timeout, an empty answer, and the statuses 408, 409, 425, 429 and 5xx.
 * @throws UserError when the server refuses the request or does not answer with JSON, so that the rollout is not retried
 * @throws RunError naming the server and the last failure, when no attempt succeeds; the signal's reason when aborted
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
      if (response.ok && text !== "") return { value: readJson(url, text), retries: attempt };
      // A server that is killed while it answers may leave an empty answer.
      const answer = `${url} answered ${response.status}: ${text.slice(0, 300)}`;
      if (!response.ok && response.status < 500 && !temporary.includes(response.status)) {
        throw new UserError(answer, { hint: "Check the address and the key of the server." });
      }
      throw new Error(answer);
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof UserError) throw error;
      if (attempt >= retries) {
        throw new RunError(`${url} did not answer in ${attempt + 1} attempts: ${describe(error)}`, { cause: error });
      }
    }
    await sleep(pauseSeconds * 2 ** attempt * 1000, undefined, { signal });
  }
}

function readJson(url: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new UserError(`${url} did not answer with JSON: ${text.slice(0, 300)}`, {
      hint: "Check the address of the server.",
    });
  }
}

/** fetch puts the reason into the cause. */
function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? `${error.message}: ${error.cause.message}` : error.message;
}
