/**
 * Several inference servers as one: connections, failures, and which server gets a request.
 *
 * A request goes to the server with the fewest; later turns of a rollout go to the same one, which has cached their prompts, unless it has
 * more than 8 requests plus twice those of the least busy. A server that fails or hangs is no longer used, and its requests go to the
 * others with the same seeds; it is tried again every 5 s and gets the weights that it lacks before its first request. A hanging server
 * keeps its connections open, so one with running requests is asked for `/health` every 30 s (a status of 503 counts as an answer: SGLang
 * sends it while it is busy). It may answer although its engine hangs, so `local.sampler.timeout` ends requests without progress.
 * Its default is half an hour, because a request without streaming is answered only at its end, and streaming all costs time per token.
 */
import { Pool } from "undici";
import { HoneError, RunError, UserError } from "../../base/errors.ts";
import { reasonOf } from "../../base/http.ts";

// One inference server: its address, its connections, and how it fails.

/** The settings of a server, for messages. */
export interface ServerSettings {
  url: string;
  apiKey: string;
  /** Undefined: a request's time limit cannot be set. */
  timeout?: string;
}

export const samplerSettings: ServerSettings = {
  url: "local.sampler.url",
  apiKey: "local.sampler.api_key",
  timeout: "local.sampler.timeout",
};

export interface ServerAddress {
  /** The address without `/v1`. */
  readonly url: string;
  /** The part of paths before `/v1`. */
  readonly prefix: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly settings: ServerSettings;
}

export interface Server extends ServerAddress {
  /** Replaced when the server hangs, to end all requests to it. */
  pool: Pool;
  /** Time limit for a request without progress. */
  readonly timeoutSeconds: number;
  /** Number of running requests. */
  running: number;
  /** Whether the server has vLLM's `/inference/v1/generate`. */
  generates?: Promise<boolean> | undefined;
}

/** @throws UserError if the address contains a login */
export function addressOf(text: string, apiKey: string | undefined, settings: ServerSettings): ServerAddress {
  const { origin, pathname, username, password } = new URL(text);
  if (username !== "" || password !== "") {
    throw new UserError(`the address of the inference server at ${origin} contains a login, which is not supported`, {
      hint: `set ${settings.apiKey} instead`,
    });
  }
  const prefix = pathname.replace(/\/+$/, "").replace(/\/v1$/, "");
  const headers: Record<string, string> = { "content-type": "application/json" };
  if (apiKey !== undefined) headers.authorization = `Bearer ${apiKey}`;
  return { url: origin + prefix, prefix, headers, settings };
}

function openServer(address: ServerAddress, timeoutSeconds: number): Server {
  return { ...address, pool: newPool(address.url, timeoutSeconds), timeoutSeconds, running: 0 };
}

function newPool(url: string, timeoutSeconds: number): Pool {
  const limit = 1000 * timeoutSeconds;
  // Less than the 5 s after which vLLM and SGLang close an idle connection, perhaps while a request is on its way.
  const keepAliveTimeout = 1000;
  return new Pool(new URL(url).origin, {
    connections: 1024,
    headersTimeout: limit,
    bodyTimeout: limit,
    keepAliveTimeout,
  });
}

/** @returns the status of /health, or why the server does not answer */
async function statusOf({ url, headers }: Server, limitMs: number): Promise<number | string> {
  try {
    return (await fetch(`${url}/health`, { headers, signal: AbortSignal.timeout(limitMs) })).status;
  } catch (error) {
    const isLate = error instanceof Error && error.name === "TimeoutError";
    return isLate ? `no answer to /health within ${limitMs / 1000} s` : reasonOf(error);
  }
}

/** The server failed, rather than the request: its connection broke, or its answer may be another one later. */
export class ServerFailed extends RunError {
  override name = "ServerFailed";
  /** The delay that the server asked for. */
  retryAfterSeconds?: number | undefined;
}

/** The connection broke before an answer began. */
export class ConnectionBroken extends ServerFailed {
  override name = "ConnectionBroken";
}

/** The server accepted a request, but made no progress with it. */
export class ServerStalled extends ServerFailed {
  override name = "ServerStalled";
  constructor(
    message: string,
    readonly why: string,
  ) {
    super(message);
  }
}

/** Whether a request may succeed later: no server answered it, or the one that did failed. */
export const mayAnswerLater = (error: unknown): boolean =>
  error instanceof ServerFailed || (error instanceof RunError && error.code === "server_unreachable");

// The inference servers of a run: chooses a server for each request, and excludes servers that fail.

export interface GroupOptions {
  urls: readonly string[];
  apiKey?: string | undefined;
  /** Default: those of samplers. */
  settings?: ServerSettings;
  /** Called with a line when a server is excluded, and when it is used again. */
  onNote?: ((text: string) => void) | undefined;
  /** A request fails after this many seconds without progress (no answer, or no token of a stream). Default 1800. */
  timeoutSeconds?: number | undefined;
  /** Seconds between the /health checks of servers with running requests. Default 30. */
  watchSeconds?: number;
  /** The hint for a server that does not answer. Default: start it, or correct its setting. */
  hint?: string | undefined;
}

export interface ServerGroup {
  readonly servers: readonly Server[];
  /** The servers that are not excluded. */
  readonly working: readonly Server[];
  /** Number of requests that were repeated. */
  readonly retries: number;
  /**
   * Called when an excluded server answers again, before its first request. Sends it the weights that it lacks.
   * @returns whether it lacked any
   */
  restore: (server: Server) => Promise<boolean>;
  /**
   * Runs a request on a server, and if this server fails, on another one. If only the connection broke, the same server
   * may be asked a second time.
   *
   * @param session requests of the same session prefer the same server, which has cached the prefix of their prompts
   * @throws RunError "server_unreachable" when no server works
   */
  run<T>(session: object | undefined, ask: (server: Server) => Promise<T>): Promise<T>;
  /** Runs something on each server that is not excluded; a server that fails is excluded. */
  each<T>(ask: (server: Server) => Promise<T>): Promise<T[]>;
  /** @throws RunError "server_unreachable" when a server is excluded */
  requireAll(): void;
  close(): Promise<void>;
}

/** Time between two attempts to reach an excluded server. */
const askAgainMs = 5000;
/** Time limit of a /health request. */
const healthMs = 10_000;

interface Exclusion {
  why: string;
  /** What the user can do. */
  hint: string;
  /** The time of the next attempt to reach it, in `performance.now()`. */
  askAt: number;
}

export function openServers(options: GroupOptions): ServerGroup {
  const { urls, apiKey, onNote, timeoutSeconds = 1800, watchSeconds = 30, settings = samplerSettings } = options;
  const startIt = options.hint ?? `start it, or correct ${settings.url}`;
  const servers = urls.map((url) => openServer(addressOf(url, apiKey, settings), timeoutSeconds));
  const excluded = new Map<Server, Exclusion>();
  const homes = new WeakMap<object, Server>();
  const checks = new Map<Server, Promise<string | undefined>>();
  let retries = 0;
  let closed = false;

  const isWorking = (server: Server) => !excluded.has(server);

  function choose(session: object | undefined, tried: ReadonlySet<Server>): Server | undefined {
    const open = servers.filter((server) => isWorking(server) && !tried.has(server));
    const [first, ...others] = open;
    if (first === undefined) return undefined;
    const least = others.reduce((best, server) => (server.running < best.running ? server : best), first);
    const home = session && homes.get(session);
    // A cached prefix is worth some waiting, but not if another server is idle.
    if (home && open.includes(home) && home.running <= 2 * least.running + 8) return home;
    if (session) homes.set(session, least);
    return least;
  }

  /** @returns the reason why the server cannot be used, or undefined */
  function check(server: Server): Promise<string | undefined> {
    const running = checks.get(server) ?? healthOf(server).finally(() => checks.delete(server));
    checks.set(server, running);
    return running;
  }

  function exclude(server: Server, exclusion: Exclusion): void {
    if (!isWorking(server)) return;
    // It may have been restarted with other flags.
    server.generates = undefined;
    excluded.set(server, exclusion);
    if (servers.some(isWorking)) {
      onNote?.(
        `the inference server at ${server.url} does not answer (${exclusion.why}); its requests go to the others`,
      );
    }
  }

  /** @returns whether the server is now excluded */
  async function excludeIfDown(server: Server, failure: ServerFailed): Promise<boolean> {
    if (failure instanceof ServerStalled) {
      // A server whose engine hangs may still answer /health.
      const askAt = performance.now() + timeoutSeconds * 1000;
      exclude(server, {
        why: failure.why,
        hint: settings.timeout ? `restart it; if replies take longer, raise ${settings.timeout}` : "restart it",
        askAt,
      });
    } else if (isWorking(server)) {
      const why = await check(server);
      if (why === undefined) return false;
      exclude(server, { why, hint: startIt, askAt: performance.now() + askAgainMs });
    }
    return true;
  }

  /** A hanging process keeps its connections open, so requests to it are ended when it does not answer /health. */
  async function endIfSilent(server: Server): Promise<void> {
    const ask = () => statusOf(server, 1000 * watchSeconds);
    const first = await ask();
    // A second time, because this process itself may have been busy.
    const status = typeof first === "string" ? await ask() : first;
    // A busy server may answer 503.
    if (typeof status === "number" || closed || !isWorking(server)) return;
    exclude(server, { why: status, hint: startIt, askAt: performance.now() + askAgainMs });
    const { pool } = server;
    server.pool = newPool(server.url, timeoutSeconds);
    await pool.destroy(new Error(status));
  }

  const watch = setInterval(() => {
    for (const server of servers) if (isWorking(server) && server.running > 0) void endIfSilent(server);
  }, 1000 * watchSeconds).unref();

  /** Tries to reach excluded servers again. */
  async function askAgain(): Promise<void> {
    const due = [...excluded].filter(([, { askAt }]) => performance.now() >= askAt);
    const asked = due.map(async ([server, state]) => {
      state.askAt = performance.now() + askAgainMs;
      const why = await check(server);
      if (why !== undefined) {
        state.why = why;
        return;
      }
      try {
        await group.restore(server);
      } catch (error) {
        state.why = reasonOf(error);
        return;
      }
      if (!closed && excluded.delete(server)) onNote?.(`the inference server at ${server.url} is back`);
    });
    await Promise.all(asked);
  }

  function unreachable(): RunError {
    const [[server, { why, hint }] = [servers[0]!, { why: "", hint: startIt }]] = excluded;
    const none = servers.length > 1 && !servers.some(isWorking);
    const text = none
      ? `none of the ${servers.length} inference servers answers; the one at ${server.url}: ${why}`
      : `the inference server at ${server.url} does not answer: ${why}`;
    return new RunError(text, { code: "server_unreachable", hint });
  }

  const group: ServerGroup = {
    servers,
    get working() {
      return servers.filter(isWorking);
    },
    get retries() {
      return retries;
    },
    restore: async () => false,
    async run(session, ask) {
      const tried = new Set<Server>();
      const restored = new Set<Server>();
      const reconnected = new Set<Server>();
      let failure: unknown;
      for (;;) {
        const asking = excluded.size > 0 ? askAgain() : undefined;
        if (excluded.size === servers.length) await asking;
        const server = choose(session, tried);
        if (server === undefined) throw servers.some(isWorking) ? failure : unreachable();
        if (failure !== undefined) retries++;
        tried.add(server);
        server.running++;
        try {
          return await ask(server);
        } catch (error) {
          if (error instanceof ServerFailed) {
            const isExcluded = await excludeIfDown(server, error);
            if (!isExcluded && error instanceof ConnectionBroken && !reconnected.has(server)) {
              reconnected.add(server);
              tried.delete(server);
            }
          }
          // A server that was restarted between two requests has lost the run's weights.
          else if (error instanceof HoneError && !restored.has(server) && (await group.restore(server))) {
            restored.add(server);
            onNote?.(`the inference server at ${server.url} was restarted and got the run's weights again`);
            tried.delete(server);
          } else throw error;
          failure = error;
        } finally {
          server.running--;
        }
      }
    },
    async each(ask) {
      await askAgain();
      const answers = await Promise.all(
        group.working.map(async (server) => {
          server.running++;
          try {
            return [await ask(server)];
          } catch (error) {
            if (error instanceof ServerFailed && (await excludeIfDown(server, error))) return [];
            throw error;
          } finally {
            server.running--;
          }
        }),
      );
      if (group.working.length === 0) throw unreachable();
      return answers.flat();
    },
    requireAll() {
      if (excluded.size > 0) throw unreachable();
    },
    async close() {
      closed = true;
      clearInterval(watch);
      await Promise.all(servers.map(({ pool }) => pool.destroy()));
    },
  };
  return group;
}

async function healthOf(server: Server): Promise<string | undefined> {
  const status = await statusOf(server, healthMs);
  if (typeof status === "string") return status;
  // Not every server has the route.
  return status >= 500 ? `it answers ${status} to /health` : undefined;
}
