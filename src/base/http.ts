/** HTTP on both sides: a local server, bodies of requests, protection from web pages, bodies of answers, retries. */
import type { AddressInfo, ListenOptions, Server } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { RunError, UserError } from "./errors.ts";
import { parseWritten } from "./json.ts";

/** Starts a server on an address of this machine. @returns its URL. @throws the system's error if the address is taken or not this machine's */
export async function listen(
  server: Server,
  options: Pick<ListenOptions, "host" | "port" | "backlog"> = {},
): Promise<string> {
  const { host = "127.0.0.1", port = 0 } = options;
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen({ ...options, host, port }, resolve);
  });
  return `http://${host.includes(":") ? `[${host}]` : host}:${(server.address() as AddressInfo).port}`;
}

// Request bodies: a JSON object that is not nested too deeply.

/** Recursive code (templates, schemas, `JSON.stringify`) overflows the stack at a few thousand levels. */
const deepest = 200;

/** @throws Error with a sentence for the client */
export function parseObject(text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = parseWritten(text);
  } catch (cause) {
    throw new Error(`the body is not valid JSON: ${cause instanceof Error ? cause.message : cause}`, { cause });
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new Error("the body is not a JSON object");
  }
  if (isTooDeep(value)) throw new Error(`the body is nested more than ${deepest} levels deep`);
  return value as Record<string, unknown>;
}

/** Whether JSON is nested too deeply for recursive code. */
export function isTooDeep(value: unknown): boolean {
  let level: object[] = typeof value === "object" && value !== null ? [value] : [];
  for (let depth = 0; level.length > 0; depth++) {
    if (depth >= deepest) return true;
    const next: object[] = [];
    for (const each of level) {
      // Long lists of tokens contain only numbers.
      for (const child of Array.isArray(each) ? each : Object.values(each)) {
        if (typeof child === "object" && child !== null) next.push(child);
      }
    }
    level = next;
  }
  return false;
}

// Keeps web pages away from the servers of this machine: cross-origin requests and DNS rebinding.

/** @param host a name or an address, for IPv6 with or without brackets */
export const isLoopback = (host: string): boolean => /^(127(\.\d{1,3}){3}|\[?::1\]?|localhost)$/i.test(host);

export interface WebHeaders {
  host: string | undefined;
  origin: string | undefined;
}

/**
 * Returns why a request is refused, or undefined.
 *
 * Browsers send `Origin` with requests of web pages. With DNS rebinding, a page's own host name points to this machine, and
 * `Host` is that name. A page does not have a key, so a server that requires one does not need to check `Host`. The port is
 * not compared, because it may be forwarded.
 */
export function webRefusal(
  { host, origin }: WebHeaders,
  { keyRequired }: { keyRequired: boolean },
): string | undefined {
  if (origin !== undefined) return "requests from web pages are not answered";
  if (keyRequired || host === undefined || isLoopback(host.replace(/:\d*$/, ""))) return undefined;
  return `the Host header ${JSON.stringify(host.slice(0, 100))} does not name this machine; without API keys only localhost, 127.0.0.1 and [::1] are answered`;
}

/** `application/json`, or a type that is written as JSON. */
export const isJsonType = (contentType: string | undefined): boolean =>
  /^application\/([\w.-]+\+)?json\s*(;|$)/i.test(contentType ?? "");

// Bodies of answers, of which a server may send more than fits into memory.

const maxMebibytes = 64;

/**
 * @param body of an answer of fetch or undici
 * @param url whose answer it is
 * @throws UserError if it is larger than 64 MiB; the rest is not received
 */
export async function answerText(body: AsyncIterable<Uint8Array> | null, url: string): Promise<string> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of body ?? []) {
    bytes += chunk.length;
    if (bytes > maxMebibytes * 2 ** 20) {
      throw new UserError(`${url} answered with more than ${maxMebibytes} MiB`, {
        hint: "Check the address of the server.",
      });
    }
    chunks.push(chunk);
  }
  return new TextDecoder().decode(Buffer.concat(chunks));
}

// When a request is repeated, how long to wait before, and the words for why it failed.

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

// Posts JSON to a server that grades, with retries.

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
