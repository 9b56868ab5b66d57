/** The viewer over HTTP: the JSON API, live events, and the page's files. */
import { existsSync, readFileSync, statSync } from "node:fs";
import { extname, join } from "node:path";
import { type Context, Hono } from "hono";
import { compress } from "hono/compress";
import { getCookie, setCookie } from "hono/cookie";
import { streamSSE } from "hono/streaming";
import { HoneError } from "../../errors.ts";
import { parseObject } from "../../http/parse-object.ts";
import { isJsonType } from "../../http/web-guard.ts";
import { readable } from "../../system-errors.ts";
import type { ApiError, FilterFields, RunList, RunSummary, ViewAnswer } from "../api.ts";
import { examples, fields } from "../filter/fields.ts";
import { FilterError } from "../filter/parse-filter.ts";
import type { IndexDatabase } from "../index/open-database.ts";
import { metricColumns } from "../queries/columns.ts";
import { mediaFile } from "../queries/media.ts";
import { wholeNumberOf } from "../queries/parameters.ts";
import { brokenSummary, runSummary } from "../queries/run.ts";
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

  // An episode of 30,000 tokens has 1.9 MB. Events are not compressed: each is sent at once.
  app.use(compress());
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
    const names = viewer.names();
    const answer: RunList = {
      folder: viewer.folder,
      single: viewer.single,
      runs: await Promise.all(names.map((name) => summaryOf(viewer, name, patienceMilliseconds / names.length))),
    };
    return context.json(answer);
  });

  app.get("/api/columns", (context) => {
    const opened = new Map<string, IndexDatabase>();
    for (const name of viewer.names()) {
      try {
        opened.set(name, viewer.open(name).index.database);
      } catch {
        // The row of the run in the list shows why it cannot be read.
      }
    }
    return context.json(metricColumns(opened, (context.req.query("names") ?? "").split(",").filter(Boolean)));
  });

  app.get("/api/fields", (context) => {
    const list = Object.entries(fields).map(([name, { type, about, values }]) => {
      return { name, type, about, values };
    });
    return context.json({ fields: list, examples: [...examples] } satisfies FilterFields);
  });

  app.get("/api/runs/:run/media/:hash", (context) => {
    const { run, hash } = context.req.param();
    const { bytes, type } = mediaFile(viewer.folderOf(run), hash);
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

  app.onError((thrown, context) => {
    const error = readable(thrown);
    const at = error instanceof FilterError ? { at: error.at, length: error.length } : {};
    const hint = error instanceof HoneError && error.hint !== undefined ? { hint: error.hint } : {};
    const status = !(error instanceof HoneError) ? 500 : error.code === "not_found" ? 404 : 400;
    return problem(context, status, { error: messageOf(error), ...hint, ...at });
  });
  return app;
}

/** One run that cannot be read does not keep the others from the list. */
async function summaryOf(viewer: Viewer, name: string, milliseconds: number): Promise<RunSummary> {
  try {
    const { index } = viewer.open(name);
    await index.refresh(milliseconds);
    return runSummary(index);
  } catch (error) {
    return brokenSummary(name, readable(error));
  }
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
  const [, name = ""] = /^\/([\w-]+(?:\/[\w-]+)*\.\w+)$/.exec(context.req.path) ?? [];
  const asset = join(page, name);
  const found = name !== "" && statSync(asset, { throwIfNoEntry: false })?.isFile() ? asset : join(page, "index.html");
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
