/** `/admin/...`: what the gateway knows of its sessions, for whoever holds the admin token. */

import { sessionPrefix } from "./address.ts";
import type { Answering } from "./answer-request.ts";
import { GatewayError } from "./gateway-error.ts";
import type { HttpExchange } from "./http-exchange.ts";
import { traceJson } from "./traces/export-traces.ts";

/**
 * - `GET /admin/sessions`: the live ones, and with a store those it holds (`?since`, in milliseconds, `?limit`)
 * - `GET /admin/traces?session&attempt`, `GET /admin/traces?id`
 * - `POST /admin/flush`: answers when everything recorded so far is in the file
 * - `GET /admin/key?session&attempt`: the base path and API key of a session
 * - `GET /admin/metrics`
 */
export function answerAdmin(exchange: HttpExchange, endpoint: string, answering: Answering): void {
  answering.access.checkAdmin(exchange);
  const route = `${exchange.method} ${endpoint}`;
  const answer = Object.hasOwn(routes, route) ? routes[route] : undefined;
  if (answer === undefined) throw new GatewayError("not_found", `there is nothing at ${route}`);
  exchange.sendJson(200, answer(exchange.query, answering));
}

const routes: Readonly<Record<string, (query: URLSearchParams, answering: Answering) => unknown>> = {
  "GET /admin/sessions": (query, { sessions, store }) => ({
    live: sessions.live.map(({ name, attempt, startedMs }) => ({ session: name, attempt, startedMs })),
    stored: store?.sessions({ ...numberOf(query, "since", "sinceMs"), ...numberOf(query, "limit", "limit") }) ?? null,
  }),
  "GET /admin/traces": (query, { store }) => {
    if (store === undefined) throw new GatewayError("not_found", "this gateway keeps no traces");
    const id = query.get("id");
    if (id === null) return { traces: store.traces(sessionOf(query)).map(traceJson) };
    const trace = store.find(id);
    if (trace === undefined) throw new GatewayError("not_found", `there is no trace ${id}`);
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
    throw new GatewayError("invalid_request", "name a session, and an attempt where it is not the first");
  }
  return { session, attempt };
}

function numberOf<Key extends string>(query: URLSearchParams, name: string, key: Key): Partial<Record<Key, number>> {
  const text = query.get(name);
  if (text === null) return {};
  const value = Number(text);
  if (!Number.isFinite(value)) throw new GatewayError("invalid_request", `${name} must be a number`);
  return { [key]: value } as Record<Key, number>;
}
