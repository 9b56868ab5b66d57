/** `/admin/...`: sessions, traces and metrics, for clients with the admin token. */

import type { Notices } from "../calls/model-call.ts";
import type { Sessions } from "../sessions/sessions.ts";
import { traceJson } from "../traces/export-traces.ts";
import type { TraceStore } from "../traces/open-trace-store.ts";
import type { Access } from "./access.ts";
import { sessionPrefix } from "./address.ts";
import { GatewayError } from "./gateway-error.ts";
import type { HttpExchange } from "./http-exchange.ts";

/** What administration reads. */
interface Administered {
  access: Access;
  sessions: Sessions;
  notices: Notices;
  store: TraceStore | undefined;
}

/**
 * - `GET /admin/sessions`: live sessions, and stored ones if there is a store (`?since`, in milliseconds, `?limit`)
 * - `GET /admin/traces?session&attempt`, `GET /admin/traces?id`
 * - `POST /admin/flush`: answers once everything recorded so far is in the file
 * - `GET /admin/key?session&attempt`: the base path and API key of a session
 * - `GET /admin/metrics`
 */
export function answerAdmin(exchange: HttpExchange, endpoint: string, gateway: Administered): void {
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
  "GET /admin/metrics": (_, { notices }) => notices.counts(),
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
