/** The viewer's server: it starts on a port and answers the JSON API, live events, and the page's files. */
import { createHash, randomBytes, timingSafeEqual } from "node:crypto";
import { existsSync, readFileSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { getRequestListener } from "@hono/node-server";
import { type Context, Hono } from "hono";
import { compress } from "hono/compress";
import { getCookie, setCookie } from "hono/cookie";
import { streamSSE } from "hono/streaming";
import { HoneError, messageOf, readable, UserError } from "../../base/errors.ts";
import { isJsonType, isLoopback, listen, parseObject, webRefusal } from "../../base/http.ts";
import { FilterError } from "../../tracking/filter.ts";
import { createLive, type Live, type OpenedRun, openViewer, type Viewer } from "./live.ts";
import { mediaFile, wholeNumberOf } from "./queries/parameters.ts";
import { firstAnswerMilliseconds, folderRoutes, runAnswer, runRoutes } from "./routes.ts";

export interface ViewerOptions {
  /** A run folder, or a folder of runs. */
  path: string;
  host: string;
  /** 0 chooses a free port. Default: 7700, or a free port if 7700 is taken. */
  port?: number | undefined;
  /** Default: generated if other machines can connect. */
  token?: string | undefined;
  /** The page's files. Default: those of the package. */
  page?: string;
  /** The folder of the indexes. Default: in the user's cache. */
  cache?: string;
}

export interface RunningViewer {
  /** The address, including the token if one is required. */
  url: string;
  /** Whether there is no run so far, so that the page waits for one. */
  isEmpty: boolean;
  close(): Promise<void>;
}

const usualPort = 7700;

/** Built by Vite into the package. */
export const builtPage = fileURLToPath(new URL("../../../dist/web", import.meta.url));

/** @throws UserError if the path is not viewable, or the port is taken */
export async function startViewer(options: ViewerOptions): Promise<RunningViewer> {
  const { path, host, port = usualPort, page = builtPage, cache } = options;
  const token = options.token ?? (isLoopback(host) ? null : randomBytes(16).toString("hex"));
  const viewer = openViewer(path, cache);
  const live = createLive(viewer);
  const app = createApp({ viewer, live, token, page });
  const server = createServer(getRequestListener(app.fetch));
  const url = await listen(server, { host, port })
    .catch((error: NodeJS.ErrnoException) => {
      if (options.port !== undefined || error.code !== "EADDRINUSE") throw error;
      return listen(server, { host, port: 0 });
    })
    .catch((error: Error) => {
      viewer.close();
      throw new UserError(`the viewer cannot listen on ${host}:${port}: ${error.message}`, {
        hint: "choose another with --port, or --port 0 for a free one",
        cause: error,
      });
    });
  return {
    url: `${url}/${token === null ? "" : `?token=${token}`}`,
    isEmpty: viewer.names().length === 0,
    async close() {
      live.close();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      viewer.close();
    },
  };
}

// The viewer over HTTP: the JSON API, live events, and the page's files.

const tokenCookie = "hone_view";

export interface AppOptions {
  viewer: Viewer;
  live: Live;
  /** Null if no token is required. */
  token: string | null;
  /** The folder of the page's files; it may be missing, then only the API answers. */
  page: string;
}

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

  for (const [path, answer] of Object.entries(folderRoutes)) {
    app.get(path, async (context) => context.json(await answer(viewer, context.req.query())));
  }

  app.get("/api/runs/:run/media/:hash", (context) => {
    const { run, hash } = context.req.param();
    const { bytes, type } = mediaFile(viewer.folderOf(run), hash);
    // The address contains the hash, so its content never changes.
    return context.body(Uint8Array.from(bytes), 200, {
      "Content-Type": type,
      "Cache-Control": "private, max-age=31536000, immutable",
    });
  });

  for (const path of Object.keys(runRoutes) as (keyof typeof runRoutes)[]) {
    app.get(path, async (context) => {
      const run = viewer.open(context.req.param("run") ?? "");
      const given = { ...context.req.query(), ...context.req.param() };
      await run.index.refresh(firstAnswerMilliseconds);
      try {
        return context.json(runAnswer(path, run, given) as object);
      } catch (error) {
        if (!isDatabaseError(error)) throw error;
        run.index.rebuild();
        await run.index.refresh(firstAnswerMilliseconds);
        return context.json(runAnswer(path, run, given) as object);
      }
    });
  }

  // Server-sent events of `run`, from the journal's number `after` on: see `ServerEvents`.
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

  // Makes all open pages go to an address of the page. The answer is the number of open pages.
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
    return context.json({ pages: live.show(url) });
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

export interface ApiError {
  /** One sentence. */
  error: string;
  hint?: string;
  /** For a filter: the position of the mistake, counted in UTF-16 code units from 0, and its length. */
  at?: number;
  length?: number;
}

const problem = (context: Context, status: 400 | 401 | 403 | 404 | 500, error: ApiError) => context.json(error, status);

const bearer = (header: string | undefined) => /^Bearer (\S+)$/i.exec(header ?? "")?.[1];

/** The index is damaged or was deleted. */
const isDatabaseError = (error: unknown) => /^SQLITE_/.test((error as { code?: string }).code ?? "");

interface Claim {
  host: string | undefined;
  origin: string | undefined;
  /** The token of a request, from its address, its cookie or its Authorization header. */
  token: string | undefined;
}

/** Returns the status and why a request is refused, or undefined. @param token null: none is required */
function refusal({ host, origin, token: given }: Claim, token: string | null): [401 | 403, string] | undefined {
  // The Origin of the page's own requests is the page's own address.
  const own = origin !== undefined && host !== undefined && [`http://${host}`, `https://${host}`].includes(origin);
  const web = webRefusal({ host, origin: own ? undefined : origin }, { keyRequired: token !== null });
  if (web !== undefined) return [403, web];
  if (token === null || (given !== undefined && isSame(given, token))) return undefined;
  return [401, "this viewer needs its token: open the address that hone view printed"];
}

const digest = (text: string) => createHash("sha256").update(text).digest();
const isSame = (left: string, right: string) => timingSafeEqual(digest(left), digest(right));

/** The page runs only its own scripts and talks only to this server. */
const contentPolicy =
  "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

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
