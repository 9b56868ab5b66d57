/**
 * The connection to a Tinker service: requests with retries, answers that are polled, errors, and the session that
 * keeps it alive.
 */
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import { HoneError, RunError, UserError } from "../../base/errors.ts";
import { reasonOf, retryAfterSeconds } from "../../base/http.ts";
import { type MediaStore, memoryStore } from "../../images/images.ts";
import { NonFiniteLossError, StateLost } from "../engine-parts.ts";
import { failureSchema, NonFiniteGradientError, type ServiceCapabilities } from "./handshake.ts";
import { sdkVersion } from "./messages.ts";

// Turns the answers of a Tinker service into errors.

/** The service does not know an accepted request any more, for example after a restart. */
export class LostResultError extends StateLost {
  override name = "LostResultError";
  constructor(id: string, why: string) {
    super(`the Tinker service lost the result of ${id}: ${why}`);
  }
}

/** The service asks for a later attempt. */
class Busy extends RunError {}

/** The error of a failed future. */
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

/** The error of a refused request. */
function refusal(baseUrl: string, path: string, status: number, text: string): UserError {
  const hint = status === 401 || status === 403 ? "Check the API key in TINKER_API_KEY." : undefined;
  return new UserError(`the Tinker service at ${baseUrl} refused ${path} (${status}): ${detailOf(text)}`, { hint });
}

/** The explanation in an answer that is not a success. */
function detailOf(text: string): string {
  try {
    const { detail } = JSON.parse(text) as { detail?: unknown };
    return typeof detail === "string" ? detail : text;
  } catch {
    return text;
  }
}

/** The same for all requests that wait for one reason, so that it is one line. */
const waitingText = (reason: string): string => `waiting for the Tinker service: ${reason}`;

const describeAnswer = (status: number, text: string): string => `${status} ${text}`.slice(0, 300);

// Single requests to a Tinker service, with retries. The key of each is the API key, or a short-lived token for which the
// hosted service exchanges it.

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

function createRequests(options: ConnectionOptions) {
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

// A connection to a Tinker service: requests with retries, and futures that are polled until they end.

type Result = Record<string, unknown> | Uint8Array;

const pollTimeoutMs = 45_000;
const maxPauseMs = 30_000;

export type Connection = ReturnType<typeof createConnection>;

export function createConnection(options: ConnectionOptions) {
  const requests = createRequests(options);
  const { baseUrl, retryMs, onStatus, counts } = requests;
  const waiting = new Set<{ what: string; since: number }>();

  const settle = (method: Method, path: string, body?: Body, signal?: AbortSignal) =>
    requests.settle({ method, path, body, signal });

  /** Returns the answer's JSON. @throws UserError when the service blames the request; RunError */
  async function post(path: string, body: Body, signal?: AbortSignal): Promise<Record<string, unknown>> {
    return requests.readJson(path, await settle("POST", path, body, signal));
  }

  async function poll(id: string, signal?: AbortSignal): Promise<Result | "again"> {
    const path = "retrieve_future";
    const body = { request_id: id, allow_metadata_only: false };
    const response = await requests.send({ method: "POST", path, body, signal }, pollTimeoutMs);
    const { status, ok, headers } = response;
    if (ok && headers.get("content-type")?.includes("protobuf")) return new Uint8Array(await response.arrayBuffer());
    const text = await response.text();
    if (status === 408) return "again";
    if (status === 410) throw new LostResultError(id, detailOf(text));
    if (status === 429 || status === 402 || status >= 500) throw new Busy(describeAnswer(status, text));
    if (!ok) throw refusal(baseUrl, path, status, text);
    const answer = JSON.parse(text) as Record<string, unknown>;
    if (answer.type === "try_again") {
      const { queue_state: state, queue_state_reason: why } = answer;
      if (state !== "active") onStatus(`waiting at the request of the Tinker service: ${why ?? state}`);
      return "again";
    }
    if (typeof answer.error === "string") throw futureFailure(answer);
    return answer;
  }

  /** Repeats the attempt while it returns "again" or the network fails. */
  async function persist<T>(what: string, attempt: () => Promise<T | "again">, signal?: AbortSignal): Promise<T> {
    const entry = { what, since: performance.now() };
    waiting.add(entry);
    try {
      for (let failures = 0; ; ) {
        try {
          // Without a network (the service in process), only this ends a call.
          signal?.throwIfAborted();
          const result = await attempt();
          if (result !== "again") return result;
          failures = 0;
        } catch (error) {
          signal?.throwIfAborted();
          if (error instanceof HoneError && !(error instanceof Busy)) throw error;
          counts.retries++;
          // A service that restarts comes back, and then reports that the result is lost.
          if (failures > 1) onStatus(waitingText(reasonOf(error)));
          await sleep(Math.min(maxPauseMs, 2 * retryMs * 2 ** failures++), undefined, { signal });
        }
      }
    } finally {
      waiting.delete(entry);
    }
  }

  /** Waits for the future of an accepted request: JSON, or protobuf as bytes. */
  const collect = (what: string, accepted: Record<string, unknown>, signal?: AbortSignal): Promise<Result> =>
    persist(what, () => poll(String(accepted.request_id), signal), signal);

  return {
    counts,
    post,
    persist,
    collect,
    get: async (path: string) => requests.readJson(path, await settle("GET", path)),
    /** A missing object counts as deleted. */
    async remove(path: string): Promise<void> {
      const response = await settle("DELETE", path);
      const text = await response.text();
      if (!response.ok && response.status !== 404) throw refusal(baseUrl, path, response.status, text);
    },
    /** Posts an operation and waits for its future. */
    run: async (kind: string, body: Body) => (await collect(kind, await post(kind, body))) as Record<string, unknown>,
    /** Posts and yields the lines of the answer as they arrive, each a JSON object. */
    async *lines(path: string, body: Body, signal: AbortSignal): AsyncGenerator<Record<string, unknown>> {
      const response = await settle("POST", path, body, signal);
      if (!response.ok || !response.body) throw refusal(baseUrl, path, response.status, await response.text());
      // Without a network (the service in process), only this ends the stream.
      const text = response.body.pipeThrough(new TextDecoderStream(), { signal });
      let rest = "";
      for await (const part of text) {
        const lines = `${rest}${part}`.split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines) yield JSON.parse(line) as Record<string, unknown>;
      }
    },
    /** Downloads a file from a signed address. */
    async download(address: string): Promise<Uint8Array> {
      const response = await (options.fetch ?? fetch)(address, {});
      if (!response.ok) throw new RunError(`cannot download ${address.split("?")[0]}: ${response.status}`);
      return new Uint8Array(await response.arrayBuffer());
    },
    waitingFor: () => [...waiting].map(({ what, since }) => ({ what, seconds: (performance.now() - since) / 1000 })),
  };
}

export type TinkerSession = Awaited<ReturnType<typeof openSession>>;

export async function openSession(
  connection: Connection,
  {
    capabilities,
    name,
    onStatus,
    media = memoryStore(),
  }: {
    capabilities: ServiceCapabilities;
    name?: string | undefined;
    onStatus?: ((text: string) => void) | undefined;
    media?: MediaStore | undefined;
  },
) {
  const made = await connection.post("create_session", {
    type: "create_session",
    tags: ["hone"],
    user_metadata: {},
    sdk_version: sdkVersion,
    display_name: name || undefined,
  });
  for (const key of ["info_message", "warning_message", "error_message"]) {
    if (typeof made[key] === "string") onStatus?.(made[key]);
  }
  const id = String(made.session_id);
  let [models, samplers, lastHeard] = [0, 0, Date.now()];
  let beating = false;
  const beat = setInterval(() => {
    // The last heartbeat has not been answered so far.
    if (beating) return warn();
    beating = true;
    connection
      .post("session_heartbeat", { type: "session_heartbeat", session_id: id })
      .then(
        () => {
          lastHeard = Date.now();
        },
        (error: unknown) => warn(error instanceof Error ? `: ${error.message}` : `: ${error}`),
      )
      .finally(() => {
        beating = false;
      });
  }, heartbeatMs);
  function warn(why = ""): void {
    const silent = Date.now() - lastHeard;
    if (silent < silenceLimitMs) return;
    onStatus?.(`the Tinker service has not answered a heartbeat for ${Math.round(silent / 1000)} s${why}`);
  }
  // The process may end between heartbeats.
  beat.unref();
  return {
    id,
    connection,
    /** The service's additions to the protocol. */
    capabilities,
    /** Holds the images of prompts. */
    media,
    /** Counts: losses that the service computed by name in one pass, other losses (two passes), and deleted checkpoints. */
    counts: { namedLosses: 0, twoPassLosses: 0, deletedCheckpoints: 0 },
    /** Models and samplers are numbered from 0. */
    nextModel: () => models++,
    nextSampler: () => samplers++,
    async close(): Promise<void> {
      clearInterval(beat);
      // The service may have ended already.
      const finish = { reason: { type: "success" }, detail: null };
      await connection.post(`sessions/${id}/finish`, finish, AbortSignal.timeout(finishTimeoutMs)).catch(() => {});
    },
  };
}

const heartbeatMs = 10_000;

/** Heartbeats that fail for longer are reported. */
const silenceLimitMs = 120_000;

/** How long the end of a run waits for the service. */
const finishTimeoutMs = 3_000;
