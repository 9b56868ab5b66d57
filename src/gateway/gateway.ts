/** Opens the gateway: an HTTP server whose sessions answer and record model calls. */
import { createServer } from "node:http";
import type { Blind, Vision } from "../chat/images/prepare-images.ts";
import type { Chat } from "../chat/types.ts";
import { UserError } from "../errors.ts";
import { listen } from "../http/listen.ts";
import { createNotices } from "./calls/model-call.ts";
import { createAccess, defaultAdminToken } from "./requests/access.ts";
import { sessionPrefix } from "./requests/address.ts";
import { type Answering, answerRequest } from "./requests/answer-request.ts";
import { HttpExchange } from "./requests/http-exchange.ts";
import { createSessions, type OpenSession } from "./sessions/sessions.ts";
import type { TraceStore } from "./traces/open-trace-store.ts";
import type { TraceFilter } from "./traces/otlp.ts";
import type { Trace } from "./traces/types.ts";

export interface GatewayOptions {
  chat: Chat;
  /** How the model sees images; default: it reads only text. */
  vision?: Vision | Blind;
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
}

export interface Gateway {
  /** The address for agents, e.g. `"http://127.0.0.1:4100"`. */
  readonly origin: string;
  /** Where it listens; differs from `origin` behind a tunnel. */
  readonly localOrigin: string;
  readonly store: TraceStore | undefined;
  open(session: OpenSession): GatewaySession;
  /** How calls ended, and how often requests were not followed exactly. */
  counts(): Record<string, number>;
  /** Ends all connections. The store stays open. */
  close(): Promise<void>;
}

/** The addresses of one session. */
export interface GatewaySession {
  /** For OpenAI's clients and compatible ones; ends with `/v1`. */
  readonly baseURL: string;
  /** For Anthropic's clients, which add `/v1` themselves. */
  readonly anthropicBaseURL: string;
  readonly apiKey: string;
  /** The same session in another role. */
  as(role: string): Pick<GatewaySession, "baseURL" | "anthropicBaseURL" | "apiKey">;
  /** The result that an agent on another server posts to `{anthropicBaseURL}/result`. Rejects with the signal's reason. */
  result(signal: AbortSignal): Promise<unknown>;
  /** See `GatewayAccess`. */
  separateSideCalls(): void;
  /** Later calls get the error `session_ended`. */
  close(): void;
}

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
  const notices = createNotices(log);
  const calls = { ok: 0, cancelled: 0, failed: 0, refused: 0 };
  const onTrace = (status: Trace["status"], trace: () => Trace) => {
    calls[status]++;
    store?.trace(trace());
  };
  const answering: Answering = {
    chat: options.chat,
    vision: options.vision ?? "the model reads only text",
    model: options.model,
    sessions,
    access,
    notices,
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
        result: (signal) => sessions.result(source, signal),
        close: () => sessions.close(opened.name, opened.attempt),
      };
    },
    counts() {
      const counts = notices.counts();
      for (const [name, count] of Object.entries(calls)) counts[`gateway/calls_${name}`] = count;
      return counts;
    },
    async close() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeAllConnections();
      await closed;
    },
  };
}
