/** Requests near to valid ones: a template with some of its parts changed at random. */

export interface Template {
  method: string;
  path: string;
  headers?: Record<string, string>;
  body?: unknown;
}

export interface FuzzRequest {
  method: string;
  path: string;
  headers: Record<string, string>;
  body: string | Uint8Array | undefined;
}

type Random = () => number;

const pick = <T>(random: Random, list: readonly T[]): T => list[Math.floor(random() * list.length)]!;

const deep = (depth: number): unknown => JSON.parse(`${"[".repeat(depth)}${"]".repeat(depth)}`);

/** `@inf`, `@own` and `@deep` become what `JSON.stringify` does not write. */
const values: readonly unknown[] = [
  ...[null, true, false, "", "x", [], {}, [null], [[]], [{}], { a: 1 }, "@inf", "@own", "@deep", deep(60)],
  ...[0, -0, 1, -1, 0.5, 1.5, 1e-320, 1e-9, 1e308, 2 ** 31, 2 ** 32, 2 ** 53, 2 ** 63, -(2 ** 63), 255, 1025],
  ...["__proto__", "constructor", "toString", "%", "../..", "\u0000", "\ud800", "\x1b[2J\n", "\u202e", "1", "NaN"],
  ...[
    "tinker://a/weights/b",
    "x".repeat(5000),
    "9".repeat(400),
    "garbage",
    "2030-01-01T00:00:00Z",
    new Array(50).fill(7),
  ],
];

const segments = [
  ...["", "%", "%zz", "%00", "%ff%fe", "..", "%2e%2e", "%2F", "*", "__proto__", "constructor", "v1", "admin", "s", "a"],
  ...[
    "0",
    "-1",
    "999999999999",
    "x".repeat(3000),
    "\u6f22",
    "?limit=x",
    "?limit=-1",
    "?offset=9e99",
    "?session=%",
    "?id=",
  ],
  ...["?limit=0&offset=99999999999999999999", "#", "//", "train:0", "tinker:", "[::1]", "a b"],
];

const methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"];

const headers: readonly [name: string, values: readonly string[]][] = [
  [
    "content-type",
    ["text/plain", "", "application/json; charset=utf-16", "multipart/form-data", "application/x-protobuf"],
  ],
  ["content-encoding", ["gzip", "zstd", "identity", "x"]],
  ["host", ["evil.com", "localhost:1", "[::1]", "127.0.0.1", "x".repeat(300), "@"]],
  ["origin", ["null", "https://evil.com"]],
  ["authorization", ["", "Bearer", "Bearer x", "Basic eDp5", `Bearer ${"x".repeat(3000)}`]],
  ["x-api-key", ["", "tml-x", "x".repeat(3000)]],
  ["x-hone-metadata", ["%", "x", "%7B%7D", "[]", encodeURIComponent(JSON.stringify({ a: { b: "\u0000" } }))]],
  ["x-idempotency-key", ["", "x"]],
  ["accept", ["text/html", "application/x-protobuf"]],
  ["range", ["bytes=0-1"]],
];

/** The first cases of a template are the template itself, now and then. */
export function mutate(template: Template, random: Random): FuzzRequest {
  const { method, path } = template;
  const bytes = template.body instanceof Uint8Array ? Uint8Array.from(template.body) : undefined;
  const request: FuzzRequest = {
    ...{ method, path },
    headers: { "content-type": bytes ? "application/x-protobuf" : "application/json", ...template.headers },
    body: undefined,
  };
  let body: unknown = bytes ? undefined : structuredClone(template.body);
  let text: string | undefined;
  for (let count = Math.floor(random() * 4); count > 0; count--) {
    const kind = random();
    if (kind < 0.1) request.method = pick(random, methods);
    else if (kind < 0.25) request.path = mutatePath(request.path, random);
    else if (kind < 0.4) {
      const [name, choices] = pick(random, headers);
      request.headers[name] = pick(random, choices);
    } else if (bytes) {
      for (let flips = 1 + Math.floor(random() * 4); flips > 0 && bytes.length > 0; flips--) {
        bytes[Math.floor(random() * bytes.length)]! ^= 1 << Math.floor(random() * 8);
      }
    } else if (kind < 0.9) body = mutateValue(body, random, values);
    else text = mutateText(JSON.stringify(body) ?? "", random);
  }
  if (bytes) request.body = random() < 0.1 ? bytes.subarray(0, Math.floor(random() * bytes.length)) : bytes;
  else if (template.body !== undefined || random() < 0.1) {
    text ??= JSON.stringify(body) ?? "";
    request.body = text
      .replaceAll('"@inf"', "1e999")
      .replaceAll('"@deep"', `${"[".repeat(5000)}${"]".repeat(5000)}`)
      .replaceAll('"@own"', '{"__proto__":{"a":1},"constructor":2}');
  }
  if (request.method === "GET" || request.method === "HEAD") request.body = undefined;
  // Sockets and URLs accept nothing else.
  request.path = request.path.replace(/[^!-~]/gu, encodeURIComponent);
  return request;
}

function mutatePath(path: string, random: Random): string {
  const parts = path.split("/");
  const at = 1 + Math.floor(random() * parts.length);
  parts.splice(at, random() < 0.6 ? 1 : 0, ...(random() < 0.9 ? [pick(random, segments)] : []));
  const joined = parts.join("/");
  return joined.startsWith("/") ? joined : `/${joined}`;
}

/** A copy with one of its parts, however deep, replaced, removed or added to. */
function mutateValue(value: unknown, random: Random, pool: readonly unknown[]): unknown {
  if (typeof value !== "object" || value === null || random() < 0.1) return pick(random, pool);
  const copy: Record<string, unknown> | unknown[] = Array.isArray(value) ? [...value] : { ...value };
  const keys = Object.keys(copy);
  const key = pick(random, keys.length > 0 ? keys : ["0"]);
  const at = copy as Record<string, unknown>;
  const kind = random();
  if (kind < 0.1)
    at[Array.isArray(copy) ? String(copy.length) : pick(random, ["x", "__proto", "stream", "n", "limit"])] = pick(
      random,
      pool,
    );
  else if (kind < 0.2) {
    if (Array.isArray(copy)) copy.pop();
    else delete at[key];
  } else at[key] = mutateValue(at[key], random, pool);
  return copy;
}

function mutateText(text: string, random: Random): string {
  const at = Math.floor(random() * (text.length + 1));
  const kind = random();
  if (kind < 0.4) return text.slice(0, at);
  if (kind < 0.8)
    return (
      text.slice(0, at) + pick(random, ["{", "]", '"', ",", "\u0000", "NaN", "\ufeff", "1e999", "\\u"]) + text.slice(at)
    );
  return pick(random, ["", "null", "[]", "3", '"x"', "{}", "{".repeat(5000), `{"a":${"[".repeat(50_000)}`]);
}
