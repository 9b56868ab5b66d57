/** Passes each request to the API that its path names. */
import { SessionEnded } from "../../agents/control-flow.ts";
import type { Blind, Vision } from "../../chat/images/prepare-images.ts";
import type { Chat } from "../../chat/types.ts";
import { UserError } from "../../errors.ts";
import { anthropicCountTokens, anthropicMessages } from "../apis/anthropic-messages.ts";
import { openaiChat } from "../apis/openai-chat.ts";
import { openaiCompletions } from "../apis/openai-completions.ts";
import { openaiResponses } from "../apis/openai-responses.ts";
import type { Notices } from "../calls/model-call.ts";
import { type CallContext, toGatewayError } from "../calls/model-call.ts";
import type { Sessions } from "../sessions/sessions.ts";
import type { TraceStore } from "../traces/open-trace-store.ts";
import { readSpans, storeSpans, type TraceFilter } from "../traces/otlp.ts";
import type { Access } from "./access.ts";
import { type Address, type CallSource, decodePart, parseAddress, sessionPrefix, sourceOf } from "./address.ts";
import { answerAdmin } from "./admin.ts";
import { anthropicError, type ErrorShape, GatewayError, openaiError } from "./gateway-error.ts";
import type { HttpExchange } from "./http-exchange.ts";
import type { Body } from "./read-parameters.ts";

export interface Answering {
  chat: Chat;
  vision: Vision | Blind;
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
export async function answerRequest(exchange: HttpExchange, answering: Answering): Promise<void> {
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
  if (endpoint === "/result" && source !== undefined && exchange.method === "POST") {
    access.checkCall(exchange, source);
    sessions.postResult(source, await exchange.readObject());
    return exchange.sendJson(200, { ok: true });
  }
  const message = `${exchange.method} ${exchange.path} does not exist${rightBase(address)}`;
  if (source !== undefined) {
    access.checkCall(exchange, source);
    // The same request would fail again.
    sessions.get(source).reportProblem(new UserError(message));
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
