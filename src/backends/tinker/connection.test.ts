import { describe, expect, it, vi } from "vitest";
import { RunError, UserError } from "../../base/errors.ts";
import { composeConfig } from "../../config/compose.ts";
import { NonFiniteLossError, StateLost } from "../engine-parts.ts";
import { tinkerService } from "./backend.ts";
import { type Connection, createConnection, openSession } from "./connection.ts";
import { documentedCapabilities } from "./handshake.ts";

interface Asked {
  path: string;
  method: string;
  key: string;
  once: string | null;
}
type Answer = (asked: Asked, times: number) => Response | Error;

/** A connection to a service that answers each path by a script of its own. */
function connect(script: Record<string, Answer>, options: { retryMs?: number; startMs?: number } = {}) {
  const asked: Asked[] = [];
  const statuses: string[] = [];
  const connection = createConnection({
    ...{ baseUrl: "http://service", apiKey: "tml-key", retryMs: 0.01, onStatus: (text: string) => statuses.push(text) },
    ...options,
    async fetch(url, { method = "GET", headers }) {
      const given = new Headers(headers);
      const path = url.replace("http://service/api/v1/", "");
      const one = { path, method, key: given.get("x-api-key")!, once: given.get("x-idempotency-key") };
      const times = asked.filter((other) => other.path === path).length;
      asked.push(one);
      const found = script[path]?.(one, times) ?? Response.json({});
      if (found instanceof Error) throw found;
      return found;
    },
  });
  return { connection, asked, statuses, of: (path: string) => asked.filter((one) => one.path === path) };
}

const json = (body: unknown, status = 200, headers = {}) => Response.json(body, { status, headers });
const jwt = (name: string, seconds: number) =>
  `e30.${Buffer.from(JSON.stringify({ exp: Math.floor(Date.now() / 1000) + seconds })).toString("base64url")}.${name}`;

describe("a request", () => {
  it.each([
    ["a bill (402)", 402],
    ["a time-out (408)", 408],
    ["a conflict (409)", 409],
    ["too many requests (429)", 429],
    ["a failure (503)", 503],
    ["a connection that breaks", new Error("reset")],
  ])("is repeated with the same id after %s, and counted", async (_, failure) => {
    const { connection, of, statuses } = connect({
      create_session: (_asked, times) => {
        if (times === 3) return json({ session_id: "s" });
        return failure instanceof Error ? failure : json({ detail: "later" }, failure as number);
      },
    });
    expect(await connection.post("create_session", {})).toEqual({ session_id: "s" });
    expect(connection.counts.retries).toBe(3);
    expect(new Set(of("create_session").map(({ once }) => once)).size).toBe(1);
    expect(statuses.at(-1)).toMatch(/^waiting for the Tinker service: .*(later|reset)/);
    if (failure === 402) expect(statuses.at(-1)).toContain("an unpaid bill");
  });

  it("is repeated after a 400 without a body, and not after one with a reason", async () => {
    const { connection, of } = connect({
      optim_step: (_, times) =>
        times === 0 ? new Response("", { status: 400, headers: { "content-length": "0" } }) : json({}),
      create_model: () => json({ detail: "no such base model" }, 400),
    });
    await connection.post("optim_step", {});
    expect(of("optim_step")).toHaveLength(2);
    await expect(connection.post("create_model", {})).rejects.toThrow(
      /refused create_model \(400\): no such base model/,
    );
    expect(of("create_model")).toHaveLength(1);
  });

  it.each([
    [
      "refuses connections",
      () => new Error("fetch failed", { cause: new Error("connect ECONNREFUSED") }),
      /ECONNREFUSED/,
    ],
    ["answers 503 to everything", () => json({ detail: "down" }, 503), /503 .*down/],
    ["answers 501 to everything", () => json({ detail: "what is this" }, 501), /refused client\/config \(501\)/],
    [
      "is a web page",
      () => new Response("<html>", { headers: { "content-type": "text/html" } }),
      /not a Tinker service.*text\/html/,
    ],
    ["is no such page", () => new Response("nothing", { status: 404 }), /refused client\/config \(404\)/],
  ])("fails within seconds if the address was wrong from the start: it %s", async (_, answer, words) => {
    const { connection, asked } = connect({ "client/config": answer }, { retryMs: 1, startMs: 60 });
    const error: unknown = await connection.get("get_server_capabilities").catch((caught: unknown) => caught);
    expect(error).toMatchObject({ exitCode: 2, message: expect.stringMatching(words) });
    expect(String(error)).toMatch(/http:\/\/service/);
    expect(asked.length).toBeLessThan(20);
  });

  it("keeps retrying a service that has answered before, which may be restarting", async () => {
    const { connection } = connect(
      {
        optim_step: (_, times) => (times < 6 ? new Error("ECONNREFUSED") : json({ done: true })),
      },
      { startMs: 0 },
    );
    await connection.get("get_server_capabilities");
    expect(await connection.post("optim_step", {})).toEqual({ done: true });
  });

  it("names the key if it is refused", async () => {
    const { connection } = connect({ get_server_capabilities: () => json({ detail: "who are you" }, 401) });
    const error: unknown = await connection.get("get_server_capabilities").catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(UserError);
    expect(error).toMatchObject({ hint: "Check the API key in TINKER_API_KEY." });
  });
});

it("requests and futures that wait for the same reason report one line", async () => {
  const gone = (_: unknown, times: number) => (times < 4 ? json({ detail: "restarting" }, 503) : json({ metrics: {} }));
  const { connection, statuses } = connect({ session_heartbeat: gone, retrieve_future: gone });
  await Promise.all([connection.post("session_heartbeat", {}), connection.collect("sample", { request_id: "r" })]);
  expect(statuses.length).toBeGreaterThan(2);
  expect(new Set(statuses)).toEqual(new Set(['waiting for the Tinker service: 503 {"detail":"restarting"}']));
});

describe("a future", () => {
  const run = (answers: Answer) => {
    const made = connect({ optim_step: () => json({ request_id: "r" }), retrieve_future: answers });
    return { ...made, result: made.connection.run("optim_step", {}) };
  };

  it("is polled further after time-outs, pauses, failures and too many requests", async () => {
    const { result, of, statuses } = run(
      (_, times) =>
        [
          json({ type: "try_again", queue_state: "active" }, 408),
          json({ type: "try_again", queue_state: "paused_rate_limit", queue_state_reason: "slow down" }),
          json({ detail: "busy" }, 429),
          json({ detail: "restarting" }, 502),
          new Error("reset"),
          json({ metrics: {} }),
        ].at(times)!,
    );
    expect(await result).toEqual({ metrics: {} });
    expect(of("retrieve_future")).toHaveLength(6);
    expect(statuses).toContain("waiting at the request of the Tinker service: slow down");
  });

  it.each([
    ["the user's fault", () => json({ error: "bad token", category: "user" }), UserError, /Tinker: bad token/],
    ["the service's", () => json({ error: "broke", category: "server" }), RunError, /the Tinker service failed: broke/],
    ["lost", () => json({ detail: "restarted" }, 410), RunError, /lost the result/],
    [
      "a loss that is not finite",
      () =>
        json({ error: "NaN. Lower it.", category: "user", code: "non_finite_loss", message: "NaN", hint: "Lower it." }),
      NonFiniteLossError,
      /^NaN$/,
    ],
    [
      "lost state",
      () => json({ error: "gone. Again.", category: "user", code: "state_lost", message: "gone", hint: "Again." }),
      StateLost,
      /lost a part of this run: gone$/,
    ],
    [
      "of an unknown kind and code",
      () => json({ error: "odd", category: "new", code: 7, message: null }),
      RunError,
      /the Tinker service failed: odd$/,
    ],
  ])("%s is reported as such", async (_, answer, kind, text) => {
    const { result, of } = run(answer);
    const error: unknown = await result.catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(kind);
    expect(error).toMatchObject({ message: expect.stringMatching(text) });
    expect(of("retrieve_future")).toHaveLength(1);
  });
});

describe("the key", () => {
  it("is exchanged once for all requests if the service asks for that, and again if refused or near its end", async () => {
    const tokens = [jwt("first", 30), jwt("second", 3600), jwt("third", 3600)];
    const { connection, of } = connect({
      "client/config": () => json({ pjwt_auth_enabled: true }),
      "auth/token": (_, times) => json({ jwt: tokens[times] }),
      // The first is too near its end to be used; the second is refused later.
      get_info: ({ key }, times) => (times > 3 && key === tokens[1] ? json({ detail: "expired" }, 401) : json({ key })),
    });
    const several = () => Promise.all([1, 2, 3].map(() => connection.post("get_info", {})));
    expect(await several()).toEqual([1, 2, 3].map(() => ({ key: tokens[1] })));
    expect((await several()).at(-1)).toEqual({ key: tokens[2] });
    expect(of("client/config")).toHaveLength(1);
    expect(of("auth/token").map(({ key }) => key)).toEqual(["tml-key", "tml-key", "tml-key"]);
  });

  const config = (...overrides: string[]) => composeConfig({ overrides: ["rllm/backend=tinker", ...overrides] }).config;
  it.each([
    ["no address and no key: the service in process", [], {}, null],
    ["a key alone: the hosted service", [], { TINKER_API_KEY: "tml-x" }, { apiKey: "tml-x" }],
    [
      "an address on this machine: any key works",
      ["tinker_base_url=http://127.0.0.1:8000/"],
      {},
      { baseUrl: "http://127.0.0.1:8000", apiKey: "tml-local" },
    ],
    ["an address in the environment", [], { TINKER_BASE_URL: "http://localhost:1" }, { baseUrl: "http://localhost:1" }],
  ])("%s", (_, overrides, env, expected) => {
    const service = tinkerService(config(...overrides), env);
    if (expected === null) expect(service).toBeNull();
    else expect(service).toMatchObject(expected);
  });

  it("must be given for another machine", () => {
    expect(() => tinkerService(config("tinker_base_url=https://example.org"), {})).toThrow(/requires an API key/);
    expect(() => tinkerService(config("tinker_base_url=nowhere"), {})).toThrow(/nowhere is not a URL/);
  });
});

it("a session sends a heartbeat every ten seconds until it is closed, and warns if none is answered", async () => {
  vi.useFakeTimers();
  try {
    const statuses: string[] = [];
    const posted: string[] = [];
    let fails = false;
    const connection = {
      async post(path: string) {
        posted.push(path);
        if (fails && path === "session_heartbeat") throw new Error("gone");
        return { session_id: "s", info_message: "welcome" };
      },
    } as unknown as Connection;
    const session = await openSession(connection, {
      capabilities: documentedCapabilities,
      onStatus: (text) => statuses.push(text),
    });
    expect(statuses).toEqual(["welcome"]);
    await vi.advanceTimersByTimeAsync(35_000);
    expect(posted.filter((path) => path === "session_heartbeat")).toHaveLength(3);
    fails = true;
    await vi.advanceTimersByTimeAsync(90_000);
    expect(statuses).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(statuses.at(-1)).toMatch(/has not answered a heartbeat for 1\d\d s: gone/);
    await session.close();
    const before = posted.length;
    expect(posted.at(-1)).toBe("sessions/s/finish");
    await vi.advanceTimersByTimeAsync(60_000);
    expect(posted).toHaveLength(before);
  } finally {
    vi.useRealTimers();
  }
});
