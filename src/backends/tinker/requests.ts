/** Single requests to a Tinker service, with retries. */
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { RunError, UserError } from "../../errors.ts";
import { describeAnswer, describeError, refusal, waitingText } from "./service-errors.ts";

export interface ConnectionOptions {
  /** `http://host:port` without a final slash; with a `fetch` of its own any name. */
  baseUrl: string;
  apiKey: string;
  /** Called with a line about long waits and retries. */
  onStatus?: ((text: string) => void) | undefined;
  /** Default: the network. */
  fetch?: (url: string, init: RequestInit) => Promise<Response>;
  /** Milliseconds before the first retry of a request; doubled up to a factor of twenty. */
  retryMs?: number;
  /** Milliseconds of retries for a service that has not answered so far: it may just be starting. */
  startMs?: number;
}

export type Method = "GET" | "POST" | "DELETE";
export type Body = Record<string, unknown> | Uint8Array;

export interface ServiceRequest {
  method: Method;
  path: string;
  body?: Body | undefined;
  /** The API key, or the token for which it was exchanged. */
  key: string;
  signal?: AbortSignal | undefined;
}

/** As in the official client: the time limit of one request, and of waiting for a payment or a busy service. */
const retryForMs = 300_000;
const waitForMs = 3_600_000;
const billingMs = 5_000;
/** The longest wait that a service may ask for. */
const longestAskedMs = 60_000;
const timeoutMs = 60_000;
const longestDelays = 20;

export type Requests = ReturnType<typeof createRequests>;

export function createRequests(options: ConnectionOptions) {
  const { baseUrl, onStatus = () => {}, fetch: ask = fetch, retryMs = 500, startMs = 5_000 } = options;
  const counts = { requests: 0, retries: 0 };
  let reached = false;

  /** @param once the same for all attempts of a request */
  async function send(
    { method, path, body, key, signal }: ServiceRequest,
    timeout: number,
    once?: string,
  ): Promise<Response> {
    const headers: Record<string, string> = {
      "x-api-key": key,
      "content-type": body instanceof Uint8Array ? "application/x-protobuf" : "application/json",
      accept: "application/json, application/x-protobuf",
    };
    if (once !== undefined && method !== "GET") headers["x-idempotency-key"] = once;
    const limit = AbortSignal.timeout(timeout);
    const init: RequestInit = { method, headers, signal: signal ? AbortSignal.any([signal, limit]) : limit };
    if (body !== undefined) init.body = body instanceof Uint8Array ? Uint8Array.from(body) : JSON.stringify(body);
    counts.requests++;
    return ask(`${baseUrl}/api/v1/${path}`, init);
  }

  /** Sends until there is an answer that another attempt would not change. */
  async function settle(request: ServiceRequest): Promise<Response> {
    const { path, signal } = request;
    const begin = Date.now();
    const once = randomUUID();
    for (let attempt = 0; ; attempt++) {
      let patience = reached ? retryForMs : startMs;
      let delay = retryMs * Math.min(2 ** attempt, longestDelays) * (1 - Math.random() / 4);
      let reason: string;
      try {
        const response = await send(request, timeoutMs, once);
        if (isFinal(response)) {
          reached ||= response.ok;
          return response;
        }
        const { status, headers } = response;
        reason = describeAnswer(status, await response.text());
        const asked = 1000 * Number(headers.get("retry-after") ?? 0);
        if (asked > 0 && asked <= longestAskedMs) delay = asked;
        if (status === 429) patience = waitForMs;
        if (status === 402) {
          patience = waitForMs;
          delay = Math.min(billingMs, 10 * retryMs);
          reason = `the account has an unpaid bill: ${reason}`;
        }
      } catch (error) {
        signal?.throwIfAborted();
        reason = describeError(error);
      }
      if (Date.now() + delay - begin > patience) {
        const text = `the Tinker service at ${baseUrl} does not answer ${path}: ${reason}`;
        if (reached) throw new RunError(text);
        throw new UserError(text, { hint: "Start it (`hone serve`), or correct tinker_base_url or TINKER_BASE_URL." });
      }
      counts.retries++;
      if (attempt > 1 || patience > retryForMs) onStatus(waitingText(reason));
      await sleep(delay, undefined, { signal });
    }
  }

  async function readJson(path: string, response: Response): Promise<Record<string, unknown>> {
    const text = await response.text();
    if (!response.ok) throw refusal(baseUrl, path, response.status, text);
    if (text === "") return {};
    try {
      return JSON.parse(text) as Record<string, unknown>;
    } catch (cause) {
      const type = response.headers.get("content-type") ?? "an unknown type";
      throw new UserError(`${baseUrl} is not a Tinker service: it answers ${path} with ${type}, not JSON`, {
        hint: "Correct tinker_base_url or TINKER_BASE_URL.",
        cause,
      });
    }
  }

  return { baseUrl, retryMs, onStatus, counts, send, settle, readJson };
}

/** Whether another attempt would get the same answer. */
function isFinal({ status, headers }: Response): boolean {
  // A 400 without a body comes from a proxy.
  if (status === 400 && headers.get("content-length") === "0") return false;
  return (status < 500 || status === 501) && ![402, 408, 409, 429].includes(status);
}
