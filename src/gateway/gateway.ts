/**
 * The gateway: an HTTP server with OpenAI's and Anthropic's APIs, whose sessions answer and record model calls. This file opens it and
 * passes each request to the API that its path names; it knows no API's parameters (openai-chat.ts, openai-responses.ts, anthropic.ts)
 * and no rollout (sessions.ts).
 */
import { createServer } from "node:http";
import { SessionEnded } from "../agents/types.ts";
import { UserError } from "../base/errors.ts";
import { listen } from "../base/http.ts";
import type { NoVision, Vision } from "../chat/images.ts";
import type { Chat } from "../chat/types.ts";
import { anthropicCountTokens, anthropicMessages } from "./anthropic.ts";
import {
  type Access,
  type Address,
  anthropicError,
  type CallSource,
  createAccess,
  decodePart,
  defaultAdminToken,
  type ErrorShape,
  GatewayError,
  HttpExchange,
  openaiError,
  parseAddress,
  sessionPrefix,
  sourceOf,
} from "./http.ts";
import { createNotices, toGatewayError } from "./model-call.ts";
import { openaiChat, openaiCompletions } from "./openai-chat.ts";
import { openaiResponses } from "./openai-responses.ts";
import type { Body } from "./parameters.ts";
import { createSessions, type Sessions } from "./sessions.ts";
import { readSpans, storeSpans, type TraceFilter } from "./traces/otlp.ts";
import { traceJson } from "./traces/read.ts";
import type { CallContext, Gateway, Notices, OpenSession, Trace, TraceStore } from "./types.ts";

export interface GatewayOptions {
  chat: Chat;
  /** How the model sees images; default: it reads only text. */
  vision?: Vision | NoVision;
  /** The name in the list of models; calls may use any other. */
  model: string;
  /** Default 127.0.0.1. */
  host?: string;
  /** Default 0: any free port. */
  port?: number;
  /** The address of a tunnel or proxy through which agents reach the gateway. Calls need keys unless it is a loopback address. */
  publicUrl?: string | undefined;
  /** The token for `/admin`. If other machines can reach the gateway, the keys of sessions derive from it. */
  adminToken?: string;
  /** Refuse what only constrained decoding can guarantee, or answer with what was sampled. Default "refuse". */
  unenforceable?: "refuse" | "allow";
  /** Opens a session for the first call to its name; without it such calls are refused. */
  openUnknown?: (source: { session: string; attempt: number }) => OpenSession;
  store?: TraceStore | undefined;
  /** Changes spans that `POST /v1/traces` receives before they are stored, such as personal data; null leaves one out. */
  filterSpans?: TraceFilter | undefined;
  /** Time limit of one model call. Default: until its session ends. */
  callTimeoutSeconds?: number;
  log?: (line: string) => void;
  /** Gets what `counts()` returns, above zero, as it changes. */
  counts?: Record<string, number>;
}

const noCalls = {
  "gateway/calls_ok": 0,
  "gateway/calls_cancelled": 0,
  "gateway/calls_failed": 0,
  "gateway/calls_refused": 0,
};

/**
 * @throws UserError when it cannot listen there, or other machines could use it with the default admin token
 *
 * @example
 * const gateway = await openGateway({ chat, model: "policy" });
 * const { baseURL } = gateway.open({ name: "task-1:0", attempt: 0, session });
 * const client = new OpenAI({ baseURL, apiKey: "any" });
 */
export async function openGateway(options: GatewayOptions): Promise<Gateway> {
  const { host = "127.0.0.1", port = 0, adminToken = defaultAdminToken, store } = options;
  const access = createAccess(host, adminToken, options.publicUrl);
  const log = options.log ?? (() => {});
  if (access.reachableAt !== undefined) {
    log(`the gateway can be reached from other machines at ${access.reachableAt}; every call requires an API key`);
  }
  const sessions = createSessions(options.openUnknown);
  const { counts = {} } = options;
  const notices = createNotices(log, counts);
  const onTrace = (status: Trace["status"], trace: () => Trace) => {
    counts[`gateway/calls_${status}`] = (counts[`gateway/calls_${status}`] ?? 0) + 1;
    store?.trace(trace());
  };
  const answering: Answering = {
    chat: options.chat,
    vision: options.vision ?? "the model reads only text",
    model: options.model,
    sessions,
    access,
    notices,
    counts,
    store,
    filterSpans: options.filterSpans,
    onTrace,
    unenforceable: options.unenforceable ?? "refuse",
    callTimeoutSeconds: options.callTimeoutSeconds,
  };
  const server = createServer({ noDelay: true }, (request, response) => {
    void answerRequest(new HttpExchange(request, response), answering);
  });
  // Longer than clients keep idle connections: closing one could lose a request that is just being sent.
  server.keepAliveTimeout = 120_000;
  const own = await listen(server, { host, port, backlog: 4096 }).catch((error: Error) => {
    const hint = "choose another port; 0 takes any free one";
    throw new UserError(`the gateway cannot listen on ${host}:${port}: ${error.message}`, { hint, cause: error });
  });
  const origin = options.publicUrl?.replace(/\/+$/, "") ?? own;

  return {
    origin,
    localOrigin: own,
    store,
    open(opened) {
      sessions.open(opened);
      const source = { session: opened.name, attempt: opened.attempt };
      const apiKey = access.keyOf(source);
      const as = (role: string | undefined) => {
        const base = `${origin}${sessionPrefix({ ...source, role })}`;
        return { baseURL: `${base}/v1`, anthropicBaseURL: base, apiKey };
      };
      return {
        ...as(undefined),
        as,
        separateSideCalls: () => sessions.separateSideCalls(source),
        get resultURL() {
          return `${origin}/results/${sessions.resultSecret(source)}`;
        },
        result: (signal) => sessions.result(source, signal),
        close: () => sessions.close(opened.name, opened.attempt),
      };
    },
    counts: () => ({ ...noCalls, ...counts }),
    async close() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeAllConnections();
      await closed;
    },
  };
}

// Passes each request to the API that its path names.

interface Answering {
  counts: Readonly<Record<string, number>>;
  chat: Chat;
  vision: Vision | NoVision;
  /** The name in the list of models; calls may use any other. */
  model: string;
  sessions: Sessions;
  access: Access;
  notices: Notices;
  store: TraceStore | undefined;
  /** Changes spans of OpenTelemetry before they are stored. */
  filterSpans: TraceFilter | undefined;
  unenforceable: CallContext["unenforceable"];
  onTrace: CallContext["onTrace"];
  /** Time limit of a model call; undefined: until its session ends. */
  callTimeoutSeconds: number | undefined;
}

interface Api {
  name: string;
  error: ErrorShape;
  answer(exchange: HttpExchange, body: Body, context: CallContext): void | Promise<void>;
}

const chat: Api = { name: "chat.completions", error: openaiError, answer: openaiChat };
const completions: Api = { name: "completions", error: openaiError, answer: openaiCompletions };
const responses: Api = { name: "responses", error: openaiError, answer: openaiResponses };
const messages: Api = { name: "messages", error: anthropicError, answer: anthropicMessages };
const countTokens: Api = { name: "messages.count_tokens", error: anthropicError, answer: anthropicCountTokens };

const apis: Readonly<Record<string, Api>> = {
  "/v1/chat/completions": chat,
  "/v1/completions": completions,
  "/v1/responses": responses,
  "/v1/messages": messages,
  "/v1/messages/count_tokens": countTokens,
};

/** Never rejects: the client gets the error. */
async function answerRequest(exchange: HttpExchange, answering: Answering): Promise<void> {
  let shape: ErrorShape = openaiError;
  try {
    const address = parseAddress(exchange.path);
    const api = Object.hasOwn(apis, address.endpoint) ? apis[address.endpoint] : undefined;
    shape = (api ?? apis[intended(address.endpoint) ?? ""])?.error ?? openaiError;
    answering.access.checkWeb(exchange);
    // Clients that try a WebSocket first (Codex) continue with HTTP.
    if (exchange.header("upgrade")?.toLowerCase() === "websocket") {
      throw new GatewayError("no_websocket", "the gateway has no WebSocket; post the request");
    }
    if (api === undefined) return await answerOther(exchange, address, answering);
    if (exchange.method !== "POST") throw new GatewayError("not_found", `${address.endpoint} supports only POST`);
    await answerCall(exchange, api, sourceOf(address), answering);
  } catch (error) {
    if (exchange.gone) return;
    exchange.sendError(
      error instanceof SessionEnded ? new GatewayError("session_ended", error.message) : toGatewayError(error),
      shape,
    );
  } finally {
    exchange.release();
  }
}

async function answerCall(exchange: HttpExchange, api: Api, source: CallSource, answering: Answering): Promise<void> {
  const { sessions, access, callTimeoutSeconds } = answering;
  access.checkCall(exchange, source);
  const body = await exchange.readObject();
  const session = sessions.get(source);
  const context: CallContext = {
    session,
    role: source.role,
    api: api.name,
    chat: answering.chat,
    vision: answering.vision,
    notices: answering.notices,
    userAgent: exchange.header("user-agent") ?? "",
    signal: exchange.signal,
    unenforceable: answering.unenforceable,
    metadata: exchange.readMetadata(),
    onTrace: answering.onTrace,
  };
  const late = () =>
    exchange.abort(new GatewayError("timeout", `the model call took longer than ${callTimeoutSeconds} s`));
  const timer = callTimeoutSeconds === undefined ? undefined : setTimeout(late, callTimeoutSeconds * 1000);
  try {
    await api.answer(exchange, body, context);
  } catch (error) {
    if (error instanceof GatewayError && isRefusal(error)) {
      session.reportProblem(new UserError(error.message, { cause: error }));
    }
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

/** The request would be refused again. The session knows its own refusals, which are user errors. */
const isRefusal = ({ kind, cause }: GatewayError) =>
  (kind === "invalid_request" || kind === "too_large") && !(cause instanceof UserError);

async function answerOther(exchange: HttpExchange, address: Address, answering: Answering): Promise<void> {
  const { endpoint, source } = address;
  const { model, sessions, access } = answering;
  const listed = { id: model, object: "model", created: 0, owned_by: "hone" };
  if (endpoint === "/health" && source === undefined) return exchange.sendJson(200, { status: "ok" });
  if (endpoint.startsWith("/admin/") && source === undefined) return answerAdmin(exchange, endpoint, answering);
  if (endpoint === "/v1/models" || endpoint.startsWith("/v1/models/")) {
    access.checkCall(exchange, sourceOf(address));
    if (endpoint === "/v1/models") return exchange.sendJson(200, { object: "list", data: [listed] });
    const id = decodePart(endpoint.slice("/v1/models/".length));
    if (id === model) return exchange.sendJson(200, listed);
    throw new GatewayError("not_found", `the model ${id} does not exist; the model is ${model}`);
  }
  if (endpoint === "/v1/traces" && exchange.method === "POST") {
    access.checkCall(exchange, sourceOf(address));
    return exchange.sendJson(200, await takeSpans(exchange, answering));
  }
  if (endpoint.startsWith("/results/") && source === undefined && exchange.method === "POST") {
    sessions.postResult(endpoint.slice("/results/".length), await exchange.readObject());
    return exchange.sendJson(200, { ok: true });
  }
  const message = `${exchange.method} ${exchange.path} does not exist${rightBase(address)}`;
  if (source !== undefined) {
    access.checkCall(exchange, source);
    // The same request would fail again.
    const cause = new GatewayError("not_found", message);
    sessions.get(source).reportProblem(new UserError(message, { cause }));
    throw cause;
  }
  throw new GatewayError("not_found", message);
}

/** OTLP/HTTP in JSON: an exporter of OpenTelemetry has this address. */
async function takeSpans(exchange: HttpExchange, { store, filterSpans, notices }: Answering): Promise<object> {
  if (store === undefined) {
    throw new GatewayError("not_found", "this gateway does not store traces (see rllm.sdk.store.path)");
  }
  if (exchange.header("content-type")?.includes("protobuf")) {
    const hint = "set OTEL_EXPORTER_OTLP_PROTOCOL=http/json, or use the exporter for OTLP/HTTP with JSON";
    throw new GatewayError("invalid_request", `traces are read as JSON, not as protobuf: ${hint}`);
  }
  const skipped = storeSpans(store, await readSpans(await exchange.readObject(), filterSpans));
  for (const reason of Object.keys(skipped)) notices.add("skipped_spans", `a span is not stored: ${reason}`);
  return { partialSuccess: {} };
}

/** The endpoint that a client with a wrong base URL means: with another number of `/v1`. */
function intended(endpoint: string): string | undefined {
  const meant = `/v1${endpoint.replace(/^(\/v1(?=\/))+/, "")}`;
  return Object.hasOwn(apis, meant) ? meant : undefined;
}

/** The base URL that a client needs, as a clause. A client adds `/v1` to its base URL or not. */
function rightBase({ endpoint, source }: Address): string {
  if (intended(endpoint) === undefined) return `; there are ${Object.keys(apis).join(", ")} and /v1/models`;
  const base = source === undefined ? "" : sessionPrefix(source);
  return endpoint.startsWith("/v1/")
    ? `; this client adds /v1 to its base URL, which must be gateway.anthropicBaseURL (${base || "/"}), not gateway.baseURL`
    : `; this client does not add /v1 to its base URL, which must be gateway.baseURL (${base}/v1)`;
}

// `/admin/...`: sessions, traces and metrics, for clients with the admin token.

/** What administration reads. */
interface Administered {
  access: Access;
  sessions: Sessions;
  counts: Readonly<Record<string, number>>;
  store: TraceStore | undefined;
}

/**
 * - `GET /admin/sessions`: live sessions, and stored ones if there is a store (`?since`, in milliseconds, `?limit`)
 * - `GET /admin/traces?session&attempt`, `GET /admin/traces?id`
 * - `POST /admin/flush`: answers once everything recorded so far is in the file
 * - `GET /admin/key?session&attempt`: the base path and API key of a session
 * - `GET /admin/metrics`
 */
function answerAdmin(exchange: HttpExchange, endpoint: string, gateway: Administered): void {
  gateway.access.checkAdmin(exchange);
  const route = `${exchange.method} ${endpoint}`;
  const answer = Object.hasOwn(routes, route) ? routes[route] : undefined;
  if (answer === undefined) throw new GatewayError("not_found", `${route} does not exist`);
  exchange.sendJson(200, answer(exchange.query, gateway));
}

const routes: Readonly<Record<string, (query: URLSearchParams, gateway: Administered) => unknown>> = {
  "GET /admin/sessions": (query, { sessions, store }) => ({
    live: sessions.live.map(({ name, attempt, startedMs }) => ({ session: name, attempt, startedMs })),
    stored: store?.sessions({ sinceMs: numberOf(query, "since"), limit: numberOf(query, "limit") }) ?? null,
  }),
  "GET /admin/traces": (query, { store }) => {
    if (store === undefined)
      throw new GatewayError("not_found", "this gateway does not store traces (see rllm.sdk.store.path)");
    const id = query.get("id");
    if (id === null) return { traces: store.traces(sessionOf(query)).map(traceJson) };
    const trace = store.find(id);
    if (trace === undefined) throw new GatewayError("not_found", `the trace ${id} does not exist`);
    return traceJson(trace);
  },
  "POST /admin/flush": (_, { store }) => {
    store?.flush();
    return store?.counts ?? { waiting: 0, written: 0, lost: 0 };
  },
  "GET /admin/key": (query, { access }) => {
    const source = { ...sessionOf(query), role: undefined };
    return { path: `${sessionPrefix(source)}/v1`, api_key: access.keyOf(source) };
  },
  "GET /admin/metrics": (_, { counts }) => counts,
};

function sessionOf(query: URLSearchParams): { session: string; attempt: number } {
  const session = query.get("session");
  const attempt = Number(query.get("attempt") ?? 0);
  if (session === null || !Number.isInteger(attempt)) {
    throw new GatewayError("invalid_request", "session is missing, or attempt is not an integer");
  }
  return { session, attempt };
}

function numberOf(query: URLSearchParams, name: string): number | undefined {
  const text = query.get(name);
  if (text === null) return undefined;
  const value = Number(text);
  if (Number.isFinite(value)) return value;
  throw new GatewayError("invalid_request", `${name} must be a number`);
}
