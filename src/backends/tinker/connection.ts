/** HTTP to a Tinker service: keys, retries, and futures that are polled until they have ended. Knows no operation. */
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import { HoneError, RunError, UserError } from "../../errors.ts";
import { failureSchema, NonFiniteGradientError } from "../../tinker-protocol/failure.ts";
import { NonFiniteLossError } from "../check-loss-value.ts";
import { StateLost } from "../engine-died.ts";

export interface ConnectionOptions {
  /** `http://host:port`, without a final slash; only a name where `fetch` needs no network. */
  baseUrl: string;
  apiKey: string;
  /** Told of what is waited for longer than usual, and of retries. */
  onStatus?: (text: string) => void;
  /** Answers requests; default is the network. */
  fetch?: (url: string, init: RequestInit) => Promise<Response>;
  /** Milliseconds before the first retry of a request; doubled up to twenty times. */
  retryMs?: number;
  /** Milliseconds that a service is tried for that has not answered yet: it may just be starting. */
  startMs?: number;
}

type Method = "GET" | "POST" | "DELETE";
type Body = Record<string, unknown> | Uint8Array;

export interface Connection {
  /** Posts and gives the JSON of the answer. @throws UserError for what the service blames on the request; RunError */
  post(path: string, body: Body, signal?: AbortSignal): Promise<Record<string, unknown>>;
  get(path: string): Promise<Record<string, unknown>>;
  /** Deletes; what is not there is deleted already. */
  remove(path: string): Promise<void>;
  /** Posts, then waits for the future's result: JSON, or protobuf as bytes. */
  run(what: string, path: string, body: Body, signal?: AbortSignal): Promise<Record<string, unknown> | Uint8Array>;
  /** Posts, and gives the lines of the answer as they come, each a JSON object. */
  lines(path: string, body: Body, signal: AbortSignal): AsyncIterable<Record<string, unknown>>;
  /** Attempts until there is something else than "again", over failures of the network too. */
  persist<T>(what: string, attempt: () => Promise<T | "again">, signal?: AbortSignal): Promise<T>;
  /** Waits for a future that has been posted. */
  collect(
    what: string,
    answer: Record<string, unknown>,
    signal?: AbortSignal,
  ): Promise<Record<string, unknown> | Uint8Array>;
  /** A file behind a signed address. */
  download(url: string): Promise<Uint8Array>;
  waitingFor(): { what: string; seconds: number }[];
  readonly counts: { requests: number; retries: number };
}

/** As the service's own client: so long in all for a request; an hour for a bill, or for a service that says it is busy. */
const retryForMs = 300_000;
const waitForMs = 3_600_000;
const billingMs = 5_000;
/** The longest wait that a service may ask for. */
const longestAskedMs = 60_000;
const pollTimeoutMs = 45_000;
const timeoutMs = 60_000;
const longestDelays = 20;

const tokenAnswer = z.looseObject({ jwt: z.string() });
/** Renewed when less than this is left. */
const tokenMarginMs = 60_000;

export function createConnection(options: ConnectionOptions): Connection {
  const { baseUrl, apiKey, onStatus = () => {}, fetch: ask = fetch, retryMs = 500, startMs = 5_000 } = options;
  const counts = { requests: 0, retries: 0 };
  const waiting = new Map<symbol, { what: string; since: number }>();
  let reached = false;
  let exchanges: Promise<boolean> | undefined;
  let token: Promise<{ jwt: string; expires: number }> | undefined;

  const refusal = (path: string, status: number, text: string) => refusalOf(baseUrl, path, status, text);
  const url = (path: string) => `${baseUrl}/api/v1/${path}`;

  async function send(
    method: Method,
    path: string,
    body: Body | undefined,
    key: string,
    { timeout, once }: { timeout: number; once?: string },
    signal?: AbortSignal,
  ): Promise<Response> {
    const limit = AbortSignal.timeout(timeout);
    const headers: Record<string, string> = {
      "x-api-key": key,
      "content-type": body instanceof Uint8Array ? "application/x-protobuf" : "application/json",
      accept: "application/json, application/x-protobuf",
      ...(once && method !== "GET" ? { "x-idempotency-key": once } : {}),
    };
    counts.requests++;
    return ask(url(path), {
      method,
      headers,
      ...(body === undefined
        ? {}
        : { body: body instanceof Uint8Array ? Uint8Array.from(body) : JSON.stringify(body) }),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
  }

  async function exchange(): Promise<{ jwt: string; expires: number }> {
    try {
      const { jwt } = tokenAnswer.parse(await answered("POST", "auth/token", {}, apiKey));
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
      const config = await answered("POST", "client/config", { sdk_version: sdkVersion }, apiKey);
      return config.pjwt_auth_enabled === true;
    } catch (error) {
      exchanges = undefined;
      throw error;
    }
  }

  /** The hosted service exchanges the key for a token of limited life where its configuration says so. */
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

  /** Sends with the key; a token that the service does not take any more is exchanged anew, once. */
  async function withKey(attempt: (key: string) => Promise<Response>): Promise<Response> {
    const used = await key();
    const current = token;
    const response = await attempt(used);
    if (response.status !== 401 || current === undefined) return response;
    // Several requests may be refused at the same time.
    if (token === current) token = exchange();
    return attempt(await key());
  }

  /** Sends until there is an answer that another attempt would not change. */
  async function settled(
    method: Method,
    path: string,
    body: Body | undefined,
    ownKey: string,
    signal?: AbortSignal,
  ): Promise<Response> {
    const begin = Date.now();
    const once = randomUUID();
    for (let attempt = 0; ; attempt++) {
      let reason: string;
      let patience = reached ? retryForMs : startMs;
      let delay = retryMs * Math.min(2 ** attempt, longestDelays) * (1 - Math.random() / 4);
      try {
        const response = await send(method, path, body, ownKey, { timeout: timeoutMs, once }, signal);
        const { status } = response;
        // A 400 without a word is some proxy's, not the service's.
        const silent = status === 400 && response.headers.get("content-length") === "0";
        const lasting = status < 500 || status === 501;
        if (lasting && ![402, 408, 409, 429].includes(status) && !silent) {
          reached ||= response.ok;
          return response;
        }
        reason = `${status} ${await response.text()}`.slice(0, 300);
        const asked = 1000 * Number(response.headers.get("retry-after") ?? 0);
        if (asked > 0 && asked <= longestAskedMs) delay = asked;
        if (status === 429) patience = waitForMs;
        if (status === 402) {
          [patience, delay] = [waitForMs, Math.min(billingMs, 10 * retryMs)];
          reason = `the account has to be paid: ${reason}`;
        }
      } catch (error) {
        signal?.throwIfAborted();
        reason = describe(error);
      }
      if (Date.now() + delay - begin > patience) {
        const text = `the Tinker service at ${baseUrl} does not answer ${path}: ${reason}`;
        if (reached) throw new RunError(text);
        throw new UserError(text, { hint: "Start it (`hone serve`), or correct tinker_base_url or TINKER_BASE_URL." });
      }
      counts.retries++;
      if (attempt > 1 || patience > retryForMs) onStatus(`waiting for the Tinker service (${path}): ${reason}`);
      await sleep(delay, undefined, signal ? { signal } : {});
    }
  }

  async function answered(
    method: Method,
    path: string,
    body: Body | undefined,
    ownKey: string,
    signal?: AbortSignal,
  ): Promise<Record<string, unknown>> {
    return readAnswer(path, await settled(method, path, body, ownKey, signal));
  }

  async function called(
    method: Method,
    path: string,
    body?: Body,
    signal?: AbortSignal,
  ): Promise<Record<string, unknown>> {
    return readAnswer(path, await withKey((ownKey) => settled(method, path, body, ownKey, signal)));
  }

  async function readAnswer(path: string, response: Response): Promise<Record<string, unknown>> {
    const text = await response.text();
    if (!response.ok) throw refusal(path, response.status, text);
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

  async function poll(id: string, signal?: AbortSignal): Promise<Record<string, unknown> | Uint8Array | "again"> {
    const body = { request_id: id, allow_metadata_only: false };
    const limit = { timeout: pollTimeoutMs };
    const response = await withKey((ownKey) => send("POST", "retrieve_future", body, ownKey, limit, signal));
    if (response.ok && (response.headers.get("content-type") ?? "").includes("protobuf")) {
      return new Uint8Array(await response.arrayBuffer());
    }
    const text = await response.text();
    if (response.status === 408) return "again";
    if (response.status === 410) {
      throw new LostResultError(id, detailOf(text));
    }
    if (!response.ok)
      throw response.status === 429 || response.status === 402 || response.status >= 500
        ? new Busy(text)
        : refusal("retrieve_future", response.status, text);
    const answer = JSON.parse(text) as Record<string, unknown>;
    if (answer.type === "try_again") {
      const { queue_state: state, queue_state_reason: why } = answer;
      if (state !== "active") onStatus(`the Tinker service makes this run wait: ${why ?? state}`);
      return "again";
    }
    if (typeof answer.error !== "string") return answer;
    throw futureFailure(answer);
  }

  const connection: Connection = {
    counts,
    post: (path, body, signal) => called("POST", path, body, signal),
    get: (path) => called("GET", path),
    async remove(path) {
      const response = await withKey((ownKey) => settled("DELETE", path, undefined, ownKey));
      const text = await response.text();
      if (!response.ok && response.status !== 404) throw refusal(path, response.status, text);
    },
    async run(what, path, body, signal) {
      return connection.collect(what, await called("POST", path, body, signal), signal);
    },
    async *lines(path, body, signal) {
      const response = await withKey((ownKey) => settled("POST", path, body, ownKey, signal));
      if (!response.ok) throw refusal(path, response.status, await response.text());
      // In process there is no network that would end it.
      const text = response.body!.pipeThrough(new TextDecoderStream(), { signal });
      let rest = "";
      for await (const part of text) {
        const parts = `${rest}${part}`.split("\n");
        rest = parts.pop()!;
        for (const line of parts) yield JSON.parse(line) as Record<string, unknown>;
      }
    },
    collect: (what, answer, signal) => connection.persist(what, () => poll(String(answer.request_id), signal), signal),
    async persist(what, attempt, signal) {
      const mark = Symbol(what);
      waiting.set(mark, { what, since: performance.now() });
      try {
        for (let failures = 0; ; ) {
          try {
            // In process there is no network that would end a call.
            signal?.throwIfAborted();
            const result = await attempt();
            if (result !== "again") return result;
            failures = 0;
          } catch (error) {
            signal?.throwIfAborted();
            if (error instanceof HoneError && !(error instanceof Busy)) throw error;
            counts.retries++;
            // A service that restarts comes back; the result is then known to be lost.
            if (failures > 1) onStatus(`waiting for the Tinker service (${what}): ${describe(error)}`);
            await sleep(Math.min(30_000, 2 * retryMs * 2 ** failures++), undefined, signal ? { signal } : {});
          }
        }
      } finally {
        waiting.delete(mark);
      }
    },
    async download(address) {
      const response = await ask(address, {});
      if (!response.ok) throw new RunError(`cannot download ${address.split("?")[0]}: ${response.status}`);
      return new Uint8Array(await response.arrayBuffer());
    },
    waitingFor: () =>
      [...waiting.values()].map(({ what, since }) => ({ what, seconds: (performance.now() - since) / 1000 })),
  };
  return connection;
}

/** The version of the official client whose messages this one speaks; the service chooses its answers by it. */
export const sdkVersion = "0.38.0";

/** What the service had accepted, it does not know any more, for example since a restart. */
export class LostResultError extends StateLost {
  override name = "LostResultError";
  constructor(id: string, why: string) {
    super(`the Tinker service has lost the result of ${id}: ${why}`);
  }
}

/** The error that a failed future stands for. */
export function futureFailure(answer: Record<string, unknown>): Error {
  const { error, category, code, message = error, hint, grad_norm } = failureSchema.parse(answer);
  switch (code) {
    case "state_lost":
      return new StateLost(`the Tinker service lost a part of this run: ${message}`);
    case "non_finite_loss":
      return new NonFiniteLossError(message);
    case "non_finite_gradient":
      return new NonFiniteGradientError(Number(grad_norm));
  }
  if (category === "user") return new UserError(`Tinker: ${message}`, { hint });
  return new RunError(`the Tinker service failed: ${message}`);
}

/** The service is there and wants to be asked later. */
class Busy extends RunError {}

const describe = (error: unknown): string => {
  if (!(error instanceof Error)) return String(error);
  const { cause } = error;
  return cause instanceof Error ? `${error.message}: ${cause.message}` : error.message;
};

function detailOf(text: string): string {
  try {
    const { detail } = JSON.parse(text) as { detail?: unknown };
    return typeof detail === "string" ? detail : text;
  } catch {
    return text;
  }
}

function refusalOf(baseUrl: string, path: string, status: number, text: string): UserError {
  const hint = status === 401 || status === 403 ? { hint: "Check the API key in TINKER_API_KEY." } : {};
  return new UserError(`the Tinker service at ${baseUrl} refused ${path} (${status}): ${detailOf(text)}`, hint);
}
