/** The inference servers of a run: which one takes a request, and which ones are left out because they fail. */
import { RunError } from "../../errors.ts";
import { reasonOf, ServerFailed, ServerStalled } from "./requests/server-failed.ts";
import { newPool, openServer, type Server, statusOf } from "./server.ts";

export interface GroupOptions {
  urls: readonly string[];
  apiKey?: string | undefined;
  /** Gets a line when a server is left out, and when it is back. */
  onNote?: ((text: string) => void) | undefined;
  /** A request fails when it has made no progress for this long: no answer, or no token of a stream. Default 1800. */
  timeoutSeconds?: number | undefined;
  /** How often servers that work on requests must show that they still answer. Default 30. */
  watchSeconds?: number;
  /** What the user can do about a server that does not answer. Default: start it, or correct its address. */
  hint?: string | undefined;
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

const startOrCorrect = "start it, or correct local.sampler.url";

interface Loss {
  why: string;
  /** What the user can do. */
  hint: string;
  /** When to ask it again, in `performance.now()`. */
  askAt: number;
}

export function openServers(options: GroupOptions): ServerGroup {
  const { urls, apiKey, onNote, timeoutSeconds = 1800, watchSeconds = 30, hint: startIt = startOrCorrect } = options;
  const servers = urls.map((url) => openServer(url, apiKey, timeoutSeconds));
  const lost = new Map<Server, Loss>();
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

  function leaveOut(server: Server, loss: Loss): void {
    if (!isWorking(server)) return;
    // It may be started again with other flags.
    server.generates = undefined;
    lost.set(server, loss);
    if (servers.some(isWorking)) {
      onNote?.(`the inference server at ${server.url} does not answer (${loss.why}); the others take over its samples`);
    }
  }

  /** @returns whether it was left out */
  async function leaveOutIfLost(server: Server, failure: ServerFailed): Promise<boolean> {
    if (failure instanceof ServerStalled) {
      // What has stalled may still answer /health.
      const askAt = performance.now() + timeoutSeconds * 1000;
      leaveOut(server, {
        why: failure.why,
        hint: "restart it; if replies take longer, raise local.sampler.timeout",
        askAt,
      });
    } else if (isWorking(server)) {
      const why = await check(server);
      if (why === undefined) return false;
      leaveOut(server, { why, hint: startIt, askAt: performance.now() + askAgainMs });
    }
    return true;
  }

  /** A process that hangs keeps its connections: requests to it end when it does not even answer /health. */
  async function endIfSilent(server: Server): Promise<void> {
    const ask = () => statusOf(server, 1000 * watchSeconds);
    const first = await ask();
    // Again, because this process itself may have been busy.
    const status = typeof first === "string" ? await ask() : first;
    // A busy server may answer 503.
    if (typeof status === "number" || closed || !isWorking(server)) return;
    leaveOut(server, { why: status, hint: startIt, askAt: performance.now() + askAgainMs });
    const { pool } = server;
    server.pool = newPool(server.url, timeoutSeconds);
    await pool.destroy(new Error(status));
  }

  const watch = setInterval(() => {
    for (const server of servers) if (isWorking(server) && server.running > 0) void endIfSilent(server);
  }, 1000 * watchSeconds).unref();

  /** Asks servers that were left out whether they are back. */
  async function askAgain(): Promise<void> {
    const due = [...lost].filter(([, { askAt }]) => performance.now() >= askAt);
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
      if (!closed && lost.delete(server)) onNote?.(`the inference server at ${server.url} is back`);
    });
    await Promise.all(asked);
  }

  function unreachable(): RunError {
    const [[server, { why, hint }] = [servers[0]!, { why: "", hint: startIt }]] = lost;
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
          if (error instanceof ServerFailed) await leaveOutIfLost(server, error);
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
          server.running++;
          try {
            return [await ask(server)];
          } catch (error) {
            if (error instanceof ServerFailed && (await leaveOutIfLost(server, error))) return [];
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
      if (lost.size > 0) throw unreachable();
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
