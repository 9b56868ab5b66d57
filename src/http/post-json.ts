/** Posts JSON to a server that grades, with retries. */
import { RunError, UserError } from "../errors.ts";
import { answerText } from "./answer-text.ts";
import { isTemporaryStatus, reasonOf, retryAfterSeconds, withRetries } from "./retries.ts";

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

/**
 * Retries after a lost connection, a timeout, an empty answer, and statuses that may change (`isTemporaryStatus`).
 * @throws UserError when the server refuses the request or does not answer with JSON, so that the rollout is not retried
 * @throws RunError naming the server and the last failure, when no attempt succeeds; the signal's reason when aborted
 */
export async function postJson(
  url: string,
  body: unknown,
  { headers, retries: limit, pauseSeconds, timeoutSeconds, signal }: PostOptions,
): Promise<{ value: unknown; retries: number }> {
  let retries = 0;
  async function attempt(): Promise<unknown> {
    const response = await fetch(url, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
      body: JSON.stringify(body),
      signal: AbortSignal.any([signal, AbortSignal.timeout(timeoutSeconds * 1000)]),
    });
    const text = await answerText(response.body, url);
    if (response.ok && text !== "") return readJson(url, text);
    // A server that is killed while it answers may leave an empty answer.
    const answer = `${url} answered ${response.status}: ${text.slice(0, 300)}`;
    // A status of 429 that stays until somebody pays.
    if (text.includes('"insufficient_quota"')) throw new UserError(answer, { hint: "Add credit to the account." });
    if (!response.ok && !isTemporaryStatus(response.status)) {
      const suspect = response.status === 404 ? "the name of the model" : "the key of the server";
      throw new UserError(answer, { hint: `Check the address and ${suspect}.` });
    }
    const asked = retryAfterSeconds(response.headers.get("retry-after"));
    throw Object.assign(new Error(answer), { retryAfterSeconds: asked });
  }
  try {
    const value = await withRetries(attempt, {
      retries: limit,
      pauseSeconds,
      signal,
      isTemporary: (error) => !(error instanceof UserError),
      onRetry: () => void retries++,
    });
    return { value, retries };
  } catch (error) {
    if (error instanceof UserError || signal.aborted) throw error;
    throw new RunError(`${url} did not answer in ${retries + 1} attempts: ${reasonOf(error)}`, { cause: error });
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
