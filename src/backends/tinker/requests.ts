/**
 * Single requests to a Tinker service, with retries. The key of each is the API key, or a short-lived token for which the
 * hosted service exchanges it.
 */
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import { RunError, UserError } from "../../errors.ts";
import { reasonOf, retryAfterSeconds } from "../../http/retries.ts";
import { sdkVersion } from "../../tinker-protocol/schema.ts";
import { describeAnswer, refusal, waitingText } from "./service-errors.ts";

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

interface ServiceRequest {
  method: Method;
  path: string;
  body?: Body | undefined;
  signal?: AbortSignal | undefined;
}

/** As in the official client: for how long a request is repeated, also while a payment is missing or the service is busy. */
const retryForMs = 300_000;
const waitForMs = 3_600_000;
const billingMs = 5_000;
/** The longest wait that a service may ask for. */
const maxAskedMs = 60_000;
const timeoutMs = 60_000;
const maxDelayFactor = 20;

export function createRequests(options: ConnectionOptions) {
  const { baseUrl, apiKey, onStatus = () => {}, fetch: ask = fetch, retryMs = 500, startMs = 5_000 } = options;
  const counts = { requests: 0, retries: 0 };
  let reached = false;

  /** @param once the same for all attempts of a request */
  async function attempt(
    { method, path, body, signal }: ServiceRequest,
    key: string,
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

  async function repeat(request: ServiceRequest, key: string): Promise<Response> {
    const { path, signal } = request;
    const begin = Date.now();
    const once = randomUUID();
    for (let failures = 0; ; failures++) {
      let limitMs = reached ? retryForMs : startMs;
      let delay = retryMs * Math.min(2 ** failures, maxDelayFactor) * (1 - Math.random() / 4);
      let reason: string;
      try {
        const response = await attempt(request, key, timeoutMs, once);
        if (isFinal(response)) {
          reached ||= response.ok;
          return response;
        }
        const { status, headers } = response;
        reason = describeAnswer(status, await response.text());
        const asked = 1000 * (retryAfterSeconds(headers.get("retry-after")) ?? 0);
        if (asked > 0 && asked <= maxAskedMs) delay = asked;
        if (status === 429) limitMs = waitForMs;
        if (status === 402) {
          limitMs = waitForMs;
          delay = Math.min(billingMs, 10 * retryMs);
          reason = `the account has an unpaid bill: ${reason}`;
        }
      } catch (error) {
        signal?.throwIfAborted();
        reason = reasonOf(error);
      }
      if (Date.now() + delay - begin > limitMs) {
        const text = `the Tinker service at ${baseUrl} does not answer ${path}: ${reason}`;
        if (reached) throw new RunError(text);
        throw new UserError(text, { hint: "Start it (`hone serve`), or correct tinker_base_url or TINKER_BASE_URL." });
      }
      counts.retries++;
      if (failures > 1 || limitMs > retryForMs) onStatus(waitingText(reason));
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

  const withKey = keyed(apiKey, async (path, body) =>
    readJson(path, await repeat({ method: "POST", path, body }, apiKey)),
  );
  return {
    baseUrl,
    retryMs,
    onStatus,
    counts,
    /** One attempt. */
    send: (request: ServiceRequest, timeout: number) => withKey((key) => attempt(request, key, timeout)),
    /** Sends until there is an answer that another attempt would not change. */
    settle: (request: ServiceRequest) => withKey((key) => repeat(request, key)),
    readJson,
  };
}

/** Whether another attempt would get the same answer. */
function isFinal({ status, headers }: Response): boolean {
  // A 400 without a body comes from a proxy.
  if (status === 400 && headers.get("content-length") === "0") return false;
  return (status < 500 || status === 501) && ![402, 408, 409, 429].includes(status);
}

const tokenAnswer = z.looseObject({ jwt: z.string() });
/** A token is renewed when less than this is left. */
const tokenMarginMs = 60_000;

interface Token {
  jwt: string;
  expires: number;
}

/** Returns a function that sends a request with the current key, and once more when its token is refused. */
function keyed(apiKey: string, post: (path: string, body: Body) => Promise<Record<string, unknown>>) {
  let exchanges: Promise<boolean> | undefined;
  let token: Promise<Token> | undefined;

  async function exchange(): Promise<Token> {
    try {
      const { jwt } = tokenAnswer.parse(await post("auth/token", {}));
      const claims = JSON.parse(Buffer.from(jwt.split(".")[1] ?? "", "base64url").toString()) as { exp?: number };
      return { jwt, expires: (claims.exp ?? 0) * 1000 };
    } catch (error) {
      // The next request tries again.
      token = undefined;
      throw error;
    }
  }

  async function asksForTokens(): Promise<boolean> {
    try {
      return (await post("client/config", { sdk_version: sdkVersion })).pjwt_auth_enabled === true;
    } catch (error) {
      exchanges = undefined;
      throw error;
    }
  }

  async function key(): Promise<string> {
    exchanges ??= asksForTokens();
    if (!(await exchanges)) return apiKey;
    token ??= exchange();
    const current = token;
    const { jwt, expires } = await current;
    if (expires - Date.now() >= tokenMarginMs) return jwt;
    if (token === current) token = exchange();
    return (await (token ?? exchange())).jwt;
  }

  return async (attempt: (key: string) => Promise<Response>): Promise<Response> => {
    const used = await key();
    const current = token;
    const response = await attempt(used);
    if (response.status !== 401 || current === undefined) return response;
    // Several requests may be refused at the same time.
    if (token === current) token = exchange();
    return attempt(await key());
  };
}
