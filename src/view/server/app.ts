/** The viewer over HTTP: the JSON API, live events, and the page's files. */
import { existsSync, readFileSync } from "node:fs";
import { extname, join, normalize } from "node:path";
import { type Context, Hono } from "hono";
import { getCookie, setCookie } from "hono/cookie";
import { streamSSE } from "hono/streaming";
import { HoneError } from "../../errors.ts";
import { parseObject } from "../../http/parse-object.ts";
import { isJsonType } from "../../http/web-guard.ts";
import type { ApiError, FilterFields, RunList, ViewAnswer } from "../api.ts";
import { examples, fields } from "../filter/fields.ts";
import { FilterError } from "../filter/parse-filter.ts";
import { mediaFile } from "../queries/media.ts";
import { wholeNumberOf } from "../queries/parameters.ts";
import { runSummary } from "../queries/run.ts";
import { contentPolicy, refusal, tokenCookie } from "./access.ts";
import type { Live } from "./live.ts";
import { runRoutes } from "./routes.ts";
import type { OpenedRun, Viewer } from "./viewer.ts";

export interface AppOptions {
  viewer: Viewer;
  live: Live;
  /** Null if no token is required. */
  token: string | null;
  /** Of the page's files; it may be missing, then only the API answers. */
  page: string;
}

/** When a run is opened for the first time, it is indexed for this long before the first answer. */
const patienceMilliseconds = 1500;

export function createApp({ viewer, live, token, page }: AppOptions): Hono {
  const app = new Hono();

  app.use(async (context, next) => {
    const { req } = context;
    const given = req.query("token") ?? getCookie(context, tokenCookie) ?? bearer(req.header("authorization"));
    const refused = refusal({ host: req.header("host"), origin: req.header("origin"), token: given }, token);
    if (refused) return problem(context, refused[0], { error: refused[1] });
    await next();
    context.header("Content-Security-Policy", contentPolicy);
    context.header("X-Content-Type-Options", "nosniff");
    context.header("Referrer-Policy", "no-referrer");
    if (!context.res.headers.has("cache-control")) context.header("Cache-Control", "no-store");
    if (token !== null && req.query("token") !== undefined) {
      setCookie(context, tokenCookie, token, { httpOnly: true, sameSite: "Strict", path: "/" });
    }
  });

  app.get("/api/runs", async (context) => {
    const runs = viewer.names().map((name) => viewer.open(name));
    await Promise.all(runs.map(({ index }) => index.refresh(patienceMilliseconds / runs.length)));
    const answer: RunList = {
      folder: viewer.folder,
      single: viewer.single,
      runs: runs.map(({ index }) => runSummary(index)),
    };
    return context.json(answer);
  });

  app.get("/api/fields", (context) => {
    const list = Object.entries(fields).map(([name, { type, about, values }]) => {
      return { name, type, about, values };
    });
    return context.json({ fields: list, examples: [...examples] } satisfies FilterFields);
  });

  app.get("/api/runs/:run/media/:hash", async (context) => {
    const { run, hash } = context.req.param();
    const { bytes, type } = await mediaFile(viewer.open(run).index.folder, hash);
    // The address contains the hash, so its content never changes.
    return context.body(Uint8Array.from(bytes), 200, {
      "Content-Type": type,
      "Cache-Control": "private, max-age=31536000, immutable",
    });
  });

  for (const [path, answer] of Object.entries(runRoutes)) {
    app.get(path, async (context) => {
      const run = viewer.open(context.req.param("run") ?? "");
      const given = { ...context.req.query(), ...context.req.param() };
      await run.index.refresh(patienceMilliseconds);
      try {
        return context.json(answer(run, given) as object);
      } catch (error) {
        if (!isDatabaseError(error)) throw error;
        run.index.rebuild();
        await run.index.refresh(patienceMilliseconds);
        return context.json(answer(run, given) as object);
      }
    });
  }

  app.get("/api/events", (context) => {
    const name = context.req.query("run");
    const run: OpenedRun | undefined = name === undefined ? undefined : viewer.open(name);
    const last = context.req.header("last-event-id") ?? context.req.query("after");
    const after = last === undefined ? undefined : wholeNumberOf("after", last, 0);
    return streamSSE(
      context,
      (stream) => {
        const ended = new AbortController();
        stream.onAbort(() => ended.abort());
        return live.follow(run, after, (event) => stream.writeSSE(event), ended.signal);
      },
      async (error, stream) => {
        await stream.writeSSE({ event: "problem", data: JSON.stringify({ error: messageOf(error) }) });
      },
    );
  });

  app.post("/api/view", async (context) => {
    // A form on another web page cannot send this content type.
    if (!isJsonType(context.req.header("content-type"))) {
      return problem(context, 400, { error: "the body must be application/json" });
    }
    let url: unknown;
    try {
      ({ url } = parseObject(await context.req.text()));
    } catch (error) {
      return problem(context, 400, { error: messageOf(error) });
    }
    if (typeof url !== "string" || !/^\/(?![/\\])/.test(url)) {
      return problem(context, 400, { error: 'url must be an address of the page, e.g. "/runs/x/episodes/t12.5"' });
    }
    return context.json({ pages: live.show(url) } satisfies ViewAnswer);
  });

  app.all("/api/*", (context) => problem(context, 404, { error: `${context.req.path} is not a route of the API` }));
  app.get("*", (context) => file(context, page));

  app.onError((error, context) => {
    const at = error instanceof FilterError ? { at: error.at, length: error.length } : {};
    const hint = error instanceof HoneError && error.hint !== undefined ? { hint: error.hint } : {};
    const status = !(error instanceof HoneError) ? 500 : error.code === "not_found" ? 404 : 400;
    return problem(context, status, { error: messageOf(error), ...hint, ...at });
  });
  return app;
}

const problem = (context: Context, status: 400 | 401 | 403 | 404 | 500, error: ApiError) => context.json(error, status);

const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error));

const bearer = (header: string | undefined) => /^Bearer (\S+)$/i.exec(header ?? "")?.[1];

/** The index is damaged or was deleted. */
const isDatabaseError = (error: unknown) => /^SQLITE_/.test((error as { code?: string }).code ?? "");

const types: Readonly<Record<string, string>> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
  ".png": "image/png",
  ".ico": "image/x-icon",
  ".woff2": "font/woff2",
  ".json": "application/json",
};

/** A file of the page, or the page itself, which has many addresses. */
function file(context: Context, page: string): Response {
  const path = normalize(decodeURIComponent(context.req.path));
  const asset = extname(path) !== "" && !path.includes("..") ? join(page, path) : undefined;
  const found = asset !== undefined && existsSync(asset) ? asset : join(page, "index.html");
  if (!existsSync(found)) {
    return context.text(
      "The page is not built; the API answers under /api, and hone view --text works without it.\n",
      404,
    );
  }
  return context.body(readFileSync(found), 200, {
    "Content-Type": types[extname(found)] ?? "application/octet-stream",
    "Cache-Control": "no-cache",
  });
}
