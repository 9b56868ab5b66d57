import { createServer, type RequestListener } from "node:http";
import { describe, expect, test, vi } from "vitest";
import {
  answerText,
  isJsonType,
  isTemporaryStatus,
  listen,
  parseObject,
  postJson,
  reasonOf,
  retryAfterSeconds,
  webRefusal,
  withRetries,
} from "./http.ts";

test("an answer without end is refused, and no more of it is received", async () => {
  let sent = 0;
  let closed = false;
  async function* endless() {
    try {
      for (;;) {
        sent++;
        yield new Uint8Array(2 ** 20);
      }
    } finally {
      closed = true;
    }
  }
  await expect(answerText(endless(), "http://a")).rejects.toThrow("http://a answered with more than 64 MiB");
  expect([sent, closed]).toEqual([65, true]);
});

test("a character may be in two pieces, and no body is empty", async () => {
  const [first, second] = [Uint8Array.of(0xc3), Uint8Array.of(0xa9)];
  const pieces = (async function* () {
    yield* [first, second];
  })();
  expect(await answerText(pieces, "http://a")).toBe("é");
  expect(await answerText(null, "http://a")).toBe("");
});

test.each([
  ["127.0.0.1:4000", true],
  ["127.1.2.3", true],
  ["localhost:51234", true],
  ["LocalHost", true],
  ["[::1]:4000", true],
  [undefined, true],
  ["evil.com", false],
  ["evil.com:4000", false],
  ["localhost.evil.com", false],
  ["127.0.0.1.nip.io", false],
  ["evil.com#127.0.0.1", false],
  ["192.168.1.5:4000", false],
  ["", false],
])("DNS rebinding: without keys the Host %j is answered: %j", (host, answered) => {
  expect(webRefusal({ host, origin: undefined }, { keyRequired: false }) === undefined).toBe(answered);
  expect(webRefusal({ host, origin: undefined }, { keyRequired: true })).toBeUndefined();
});

test.each(["https://evil.com", "http://localhost:3000", "null"])("web pages of %s are refused", (origin) => {
  for (const keyRequired of [true, false]) {
    expect(webRefusal({ host: "localhost", origin }, { keyRequired })).toMatch(/web pages/);
  }
});

test.each([
  ["application/json", true],
  ["Application/JSON; charset=utf-8", true],
  ["application/problem+json", true],
  ["text/plain", false],
  ["application/x-www-form-urlencoded", false],
  ["text/plain; application/json", false],
  ["application/jsonp", false],
  [undefined, false],
])("%j is JSON: %j", (type, is) => {
  expect(isJsonType(type)).toBe(is);
});

test("a deeply nested body is refused, a long flat one is not", () => {
  const nested = (depth: number) => `${'{"a":'.repeat(depth)}1${"}".repeat(depth)}`;
  expect(() => parseObject(nested(200_000))).toThrow(/nested more than 200 levels/);
  expect(() => parseObject(`{"a":${"[".repeat(300)}${"]".repeat(300)}}`)).toThrow(/nested/);
  expect(parseObject(nested(199))).toHaveProperty("a");
  expect(parseObject(JSON.stringify({ tokens: new Array(200_000).fill(7) })).tokens).toHaveLength(200_000);
  for (const text of ["[]", "null", "3", '"x"']) expect(() => parseObject(text)).toThrow(/not a JSON object/);
  expect(() => parseObject("{")).toThrow(/not valid JSON/);
});

const temporary = { isTemporary: () => true };

/** Fails as often as there are errors, then returns the number of attempts. */
function failing(...errors: unknown[]) {
  let attempts = 0;
  return async () => {
    const error = errors[attempts++];
    if (error !== undefined) throw error;
    return attempts;
  };
}

describe("retries", () => {
  test("end with the first success, and are counted", async () => {
    const seen: unknown[] = [];
    const options = { ...temporary, retries: 2, pauseSeconds: 0, onRetry: (error: unknown) => seen.push(error) };
    expect(await withRetries(failing("a", "b"), options)).toBe(3);
    expect(seen).toEqual(["a", "b"]);
    await expect(withRetries(failing("a", "b", "c"), options)).rejects.toBe("c");
  });

  test("are not made after an error that would be the same again", async () => {
    const attempt = vi.fn(failing("refused"));
    const options = { isTemporary: () => false, retries: 5, pauseSeconds: 0 };
    await expect(withRetries(attempt, options)).rejects.toBe("refused");
    expect(attempt).toHaveBeenCalledTimes(1);
  });

  test("wait twice as long each time, or as long as the server asks", async () => {
    const times: number[] = [];
    const fail = failing({}, { retryAfterSeconds: 0.2 }, { retryAfterSeconds: 3600 }, {});
    const attempt = () => {
      times.push(performance.now());
      return fail();
    };
    await withRetries(attempt, { ...temporary, retries: 4, pauseSeconds: 0.02 });
    const pauses = times.slice(1).map((time, index) => time - times[index]!);
    for (const [index, least] of [20, 200, 80, 160].entries()) expect(pauses[index]).toBeGreaterThan(least - 2);
  });

  test("start again after progress", async () => {
    const progress = [false, true, false];
    const options = { ...temporary, retries: 1, pauseSeconds: 0, hasProgressed: async () => progress.shift() ?? false };
    await expect(withRetries(failing("a", "b", "c"), options)).rejects.toBe("c");
    await expect(withRetries(failing("a", "b", "c"), options)).rejects.toBe("b");
  });

  test("end with the signal's reason, also while waiting", async () => {
    const abort = new AbortController();
    const options = { ...temporary, retries: 3, pauseSeconds: 1000, signal: abort.signal };
    const waiting = withRetries(failing("a"), { ...options, onRetry: () => setImmediate(() => abort.abort("stop")) });
    await expect(waiting).rejects.toBe("stop");
    await expect(withRetries(failing("a"), options)).rejects.toBe("stop");
  });
});

test.each([
  [400, false],
  [401, false],
  [404, false],
  [422, false],
  [408, true],
  [409, true],
  [425, true],
  [429, true],
  [500, true],
  [503, true],
])("another attempt may help after the status %i: %s", (status, expected) => {
  expect(isTemporaryStatus(status)).toBe(expected);
});

test("Retry-After is a number of seconds or a date", () => {
  expect([retryAfterSeconds("12"), retryAfterSeconds(null), retryAfterSeconds("soon")]).toEqual([
    12,
    undefined,
    undefined,
  ]);
  const inTen = retryAfterSeconds(new Date(Date.now() + 10_000).toUTCString());
  expect(inTen).toBeGreaterThan(8);
  expect(inTen).toBeLessThanOrEqual(10);
  expect(retryAfterSeconds(new Date(0).toUTCString())).toBe(0);
});

test.each([
  ["the cause of fetch's error", new TypeError("fetch failed", { cause: new Error("bad port") }), "bad port"],
  ["the code of an error without a message", Object.assign(new Error(""), { code: "ECONNREFUSED" }), "ECONNREFUSED"],
  ["the message", new Error("it is late", { cause: new Error("the clock") }), "it is late"],
  ["any value", "a text", "a text"],
])("the reason is %s", (_, error, reason) => {
  expect(reasonOf(error)).toBe(reason);
});

async function post(answer: RequestListener) {
  const server = createServer(answer);
  const url = await listen(server);
  const options = { retries: 1, pauseSeconds: 0.001, timeoutSeconds: 5, signal: new AbortController().signal };
  return postJson(url, {}, options).finally(() => server.close());
}

test("a request waits as long as the server asks", async () => {
  const times: number[] = [];
  const posted = await post((_, response) => {
    times.push(performance.now());
    if (times.length === 1) response.writeHead(429, { "retry-after": "1" }).end("busy");
    else response.end("[1]");
  });
  expect(posted).toEqual({ value: [1], retries: 1 });
  expect(times[1]! - times[0]!).toBeGreaterThan(900);
});

test("an account without credit is not asked again", async () => {
  let calls = 0;
  const posted = post((_, response) => {
    calls++;
    response.writeHead(429).end('{"error":{"code":"insufficient_quota"}}');
  });
  await expect(posted).rejects.toThrow("insufficient_quota");
  expect(calls).toBe(1);
});
