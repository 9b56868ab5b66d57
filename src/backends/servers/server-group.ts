/** The inference servers of a run: which one takes a request, and which ones are left out because they fail. */
import { Pool } from "undici";
import { RunError, UserError } from "../../errors.ts";
import { reasonOf, ServerFailed } from "./requests/server-failed.ts";

export interface Server {
  /** Without `/v1`. */
  readonly url: string;
  /** The part of paths before `/v1`. */
  readonly prefix: string;
  readonly pool: Pool;
  readonly headers: Readonly<Record<string, string>>;
  /** Requests that it works on. */
  running: number;
  /** Whether it has vLLM's `/inference/v1/generate`. */
  generates?: Promise<boolean> | undefined;
}

export interface GroupOptions {
  urls: readonly string[];
  apiKey?: string | undefined;
  /** Gets a line when a server is left out, and when it is back. */
  onNote?: ((text: string) => void) | undefined;
}

export interface ServerGroup {
  readonly servers: readonly Server[];
  /** Those that are not left out. */
  readonly working: readonly Server[];
  /** Requests that were sent again to another server. */
  readonly retries: number;
  /**
   * Brings a server that is back up to date before it gets requests.
   * @returns whether it lacked something
   */
  restore: (server: Server) => Promise<boolean>;
  /**
   * Runs a request on a server, and on another one if that one fails.
   *
   * @param session requests of one session prefer one server, which has cached the prefix of their prompts
   * @throws RunError "server_unreachable" when no server works
   */
  run<T>(session: object | undefined, ask: (server: Server) => Promise<T>): Promise<T>;
  /** Runs something on each server that works; one that fails is left out. */
  each<T>(ask: (server: Server) => Promise<T>): Promise<T[]>;
  /** @throws RunError "server_unreachable" when a server was left out */
  requireAll(): void;
  close(): Promise<void>;
}

/** How often a server that was left out is asked whether it is back. */
const askAgainMs = 5000;
/** A server that works answers this fast. */
const healthMs = 10_000;

export function openServers({ urls, apiKey, onNote }: GroupOptions): ServerGroup {
  const servers = urls.map((url) => openServer(url, apiKey));
  const lost = new Map<Server, { why: string; askedAt: number }>();
  const homes = new WeakMap<object, Server>();
  const checks = new Map<Server, Promise<string | undefined>>();
  let retries = 0;
  let closed = false;

  const isWorking = (server: Server) => !lost.has(server);

  function choose(session: object | undefined, tried: ReadonlySet<Server>): Server | undefined {
    const open = servers.filter((server) => isWorking(server) && !tried.has(server));
    const [first, ...others] = open;
    if (first === undefined) return undefined;
    const least = others.reduce((best, server) => (server.running < best.running ? server : best), first);
    const home = session && homes.get(session);
    // A cached prefix is worth some waiting, but not a server that works while another one idles.
    if (home && open.includes(home) && home.running <= 2 * least.running + 8) return home;
    if (session) homes.set(session, least);
    return least;
  }

  /** @returns why it does not work, or undefined */
  function check(server: Server): Promise<string | undefined> {
    const running = checks.get(server) ?? healthOf(server).finally(() => checks.delete(server));
    checks.set(server, running);
    return running;
  }

  /** @returns whether it was left out */
  async function leaveOutIfLost(server: Server): Promise<boolean> {
    const why = await check(server);
    if (why === undefined) return false;
    if (isWorking(server)) {
      // It may be started again with other flags.
      server.generates = undefined;
      lost.set(server, { why, askedAt: performance.now() });
      if (servers.some(isWorking)) {
        onNote?.(`the inference server at ${server.url} does not answer (${why}); the others take over its samples`);
      }
    }
    return true;
  }

  /** Asks servers that were left out whether they are back. */
  async function askAgain(): Promise<void> {
    const due = [...lost].filter(([, { askedAt }]) => performance.now() - askedAt >= askAgainMs);
    const asked = due.map(async ([server, state]) => {
      state.askedAt = performance.now();
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
      if (!closed && lost.delete(server)) onNote?.(`the inference server at ${server.url} is back`);
    });
    await Promise.all(asked);
  }

  function unreachable(): RunError {
    const [[server, { why }] = [servers[0]!, { why: "" }]] = lost;
    const none = servers.length > 1 && !servers.some(isWorking);
    const text = none
      ? `none of the ${servers.length} inference servers answers; the one at ${server.url}: ${why}`
      : `the inference server at ${server.url} does not answer: ${why}`;
    return new RunError(text, { code: "server_unreachable", hint: "start it, or correct local.sampler.url" });
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
      let failure: unknown;
      for (;;) {
        const asking = lost.size > 0 ? askAgain() : undefined;
        if (lost.size === servers.length) await asking;
        const server = choose(session, tried);
        if (server === undefined) throw servers.some(isWorking) ? failure : unreachable();
        if (tried.size > 0) retries++;
        tried.add(server);
        server.running++;
        try {
          return await ask(server);
        } catch (error) {
          if (error instanceof ServerFailed) await leaveOutIfLost(server);
          // A server that was restarted between two requests has none of the run's weights.
          else if (error instanceof RunError && !restored.has(server) && (await group.restore(server))) {
            restored.add(server);
            onNote?.(`the inference server at ${server.url} was restarted and got the run's weights again`);
            tried.delete(server);
            retries++;
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
          try {
            return [await ask(server)];
          } catch (error) {
            if (error instanceof ServerFailed && (await leaveOutIfLost(server))) return [];
            throw error;
          }
        }),
      );
      if (group.working.length === 0) throw unreachable();
      return answers.flat();
    },
    requireAll() {
      if (lost.size > 0) throw unreachable();
    },
    async close() {
      closed = true;
      await Promise.all(servers.map(({ pool }) => pool.destroy()));
    },
  };
  return group;
}

function openServer(text: string, apiKey: string | undefined): Server {
  const { origin, pathname, username, password } = new URL(text);
  if (username !== "" || password !== "") {
    throw new UserError(`the address of the inference server at ${origin} contains a login, which is not supported`, {
      hint: "set local.sampler.api_key instead",
    });
  }
  const prefix = pathname.replace(/\/+$/, "").replace(/\/v1$/, "");
  const headers: Record<string, string> = { "content-type": "application/json" };
  if (apiKey !== undefined) headers.authorization = `Bearer ${apiKey}`;
  // A reply may take any time: the caller sets the limit.
  const pool = new Pool(origin, { connections: 1024, headersTimeout: 0, bodyTimeout: 0 });
  return { url: origin + prefix, prefix, pool, headers, running: 0 };
}

async function healthOf({ url, headers }: Server): Promise<string | undefined> {
  try {
    const { status } = await fetch(`${url}/health`, { headers, signal: AbortSignal.timeout(healthMs) });
    // Not every server has the route.
    return status >= 500 ? `it answers ${status} to /health` : undefined;
  } catch (error) {
    return reasonOf(error);
  }
}
