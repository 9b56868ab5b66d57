/** The HTTP interface of the service: routes, API key, error responses, request counts. */
import { createHash, timingSafeEqual } from "node:crypto";
import { Hono } from "hono";
import { bodyLimit } from "hono/body-limit";
import { webRefusal } from "../../base/http.ts";
import { answerTo, clipped, HttpError } from "./http.ts";
import {
  checkpointRoutes,
  downloadRoutes,
  futureRoutes,
  handshakeRoutes,
  samplingRoutes,
  trainingRoutes,
} from "./routes.ts";
import type { Service } from "./service.ts";

/** Well above what a client sends in one request: 5 MB of estimated tensors, or a long prompt as JSON. */
const maxBytes = 256 * 1024 * 1024;

/** A health check does not need a key. */
const openPath = "/api/v1/healthz";

/** @param apiKey null: requests need no key */
export function createApp(service: Service, apiKey: string | null, features: readonly Feature[]): Hono {
  const { metrics, log } = service.context;
  const app = new Hono();
  app.use(async (c, next) => {
    await next();
    // The pattern, not the path: paths hold ids.
    const route = c.res.status === 404 ? "other" : c.req.routePath;
    metrics.add("hone_http_requests_total", { route, status: String(c.res.status) });
  });
  app.use(async (c, next) => {
    const headers = { host: c.req.header("host"), origin: c.req.header("origin") };
    const refusal = webRefusal(headers, { keyRequired: apiKey !== null });
    if (refusal !== undefined) throw new HttpError(403, refusal);
    await next();
  });
  for (const routes of [downloadRoutes(service), ...features.flatMap(({ open }) => open ?? [])]) app.route("/", routes);
  app.use(async (c, next) => {
    const bearer = c.req.header("authorization")?.replace(/^Bearer /i, "");
    const given = c.req.header("x-api-key") ?? bearer ?? "";
    if (apiKey !== null && c.req.path !== openPath && !sameKey(given, apiKey)) {
      throw new HttpError(401, "the API key is wrong: set TINKER_API_KEY to the key that this server was started with");
    }
    await next();
  });
  app.use(
    bodyLimit({
      maxSize: maxBytes,
      onError: (c) => c.json({ detail: `the body is longer than ${maxBytes} bytes` }, 413),
    }),
  );
  app.get("/metrics", (c) => c.text(metrics.text()));
  for (const routes of [
    handshakeRoutes(service),
    trainingRoutes(service),
    samplingRoutes(service),
    futureRoutes(service),
    checkpointRoutes(service),
    ...features.flatMap(({ api }) => api ?? []),
  ]) {
    app.route("/api/v1", routes);
  }
  for (const routes of features.flatMap(({ root }) => root ?? [])) app.route("/", routes);
  app.notFound((c) => c.json({ detail: clipped(`${c.req.method} ${c.req.path} does not exist on this server`) }, 404));
  app.onError((error, c) => {
    const { status, detail } = answerTo(error);
    if (status === 500) log.warn("", `${c.req.method} ${c.req.path}: ${error.message}`, error.stack);
    return c.json({ detail }, status);
  });
  return app;
}

/** Compares in a time that does not depend on the keys. */
function sameKey(given: string, expected: string): boolean {
  const digest = (text: string) => createHash("sha256").update(text).digest();
  return timingSafeEqual(digest(given), digest(expected));
}

// Parts of the server that no training loop needs. The rest of the server does not know which there are.

export interface Feature {
  /** Under `/api/v1`. */
  api?: Hono;
  /** At the root. */
  root?: Hono;
  /** At the root, without the API key and the limit on bodies. */
  open?: Hono;
  /** Called at every regular clean-up, and before the server ends. */
  sweep?(): void;
}

export type OpenFeature = (service: Service) => Feature;
