/** Addresses of images: only public hosts, or those that are allowed; a client learns nothing from an address. */
import type { lookup } from "node:dns";
import { createServer, type Server } from "node:http";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { listen } from "../base/http.ts";
import { memoryStore } from "./images.ts";
import { addressRules, type Fetching, imageLoader } from "./load-image.ts";
import { png } from "./pictures.fixture.ts";

/** Paths that were requested, with the name in the request. */
let asked: string[] = [];
let server: Server;
let port: string;

beforeAll(async () => {
  server = createServer((request, response) => {
    asked.push(`${request.headers.host?.split(":")[0]}${request.url}`);
    const target = new URL(request.url!, "http://x").searchParams.get("to");
    if (target !== null) response.writeHead(302, { location: target }).end();
    else if (request.url === "/secret") response.writeHead(403).end("no");
    else if (request.url === "/stall") response.writeHead(200).write("x");
    else if (request.url === "/reset")
      response
        .writeHead(200, { "content-length": 9 })
        .write("x", () => setTimeout(() => request.socket.resetAndDestroy(), 50));
    else if (request.url === "/text") response.end("hello");
    else response.end(png());
  });
  port = new URL(await listen(server)).port;
});
afterAll(() => {
  server.closeAllConnections();
  server.close();
});

/** Names of the test: each resolves to the addresses of its next answer. */
function resolving(names: Record<string, string[][]>): typeof lookup {
  const resolve = (name: string, _: unknown, done: (error: Error | null, found: object[]) => void) => {
    const answers = names[name];
    const ips = answers === undefined ? undefined : answers.length > 1 ? answers.shift()! : answers[0]!;
    if (ips === undefined) done(Object.assign(new Error(`getaddrinfo ENOTFOUND ${name}`), { code: "ENOTFOUND" }), []);
    else {
      done(
        null,
        ips.map((address) => ({ address, family: address.includes(":") ? 6 : 4 })),
      );
    }
  };
  return resolve as unknown as typeof lookup;
}

const loader = (fetching: Fetching) => imageLoader(memoryStore(), fetching);

describe("addresses that reach this machine or its network are refused", () => {
  test.each([
    ...["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.1.", "0.0.0.0", "0", "[::1]", "[::]"],
    ...[
      "[::ffff:127.0.0.1]",
      "[::ffff:7f00:1]",
      "[64:ff9b::7f00:1]",
      "[64:ff9b:1::1]",
      "[2002:7f00:1::]",
      "[::7f00:1]",
    ],
    ...["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "169.254.169.254", "192.0.0.192"],
    ...["168.63.129.16", "100.100.100.200", "[fd00:ec2::254]", "[fe80::1]", "[fec0::1]", "[ff02::1]", "[fc00::1]"],
    ...[
      "224.0.0.1",
      "255.255.255.255",
      "240.0.0.1",
      "198.18.0.1",
      "192.0.2.1",
      "[2001:db8::1]",
      "[2001::1]",
      "[100::1]",
    ],
    ...["１２７.０.０.１", "127。0。0。1", "%31%32%37.0.0.1"],
  ])("http://%s/, before a connection", async (host) => {
    asked = [];
    await expect(loader({}).load(`http://${host}:${port}/a.png`)).rejects.toThrow("is not a public address");
    expect(asked).toEqual([]);
  });

  test.each(["http://[fe80::1%25lo]/a.png", "http://1.2.3.4.5/", "http://256.0.0.1/", "http:///", "http://a b/"])(
    "%s is not an address",
    async (address) => {
      await expect(loader({}).load(address)).rejects.toThrow(/is not an address|cannot be fetched/);
    },
  );

  test("a user name cannot hide the host", async () => {
    const address = `http://example.com@127.0.0.1:${port}/a.png`;
    await expect(loader({}).load(address)).rejects.toThrow("it has a user name or a password");
  });

  test("no spelling of a number as a host passes", () => {
    const { allowsIp } = addressRules(["*"]);
    const part = fc.nat(0xffffffff);
    const spell = (number: number, base: number) =>
      base === 16 ? `0x${number.toString(16)}` : base === 8 ? `0${number.toString(8)}` : String(number);
    fc.assert(
      fc.property(part, fc.constantFrom(8, 10, 16), fc.boolean(), (number, base, mapped) => {
        const { hostname } = new URL(`http://${spell(number, base)}/`);
        const bytes = [number >>> 24, (number >>> 16) & 255, (number >>> 8) & 255, number & 255];
        expect(hostname).toBe(bytes.join("."));
        const special = [0, 10, 127].includes(bytes[0]!) || bytes[0]! >= 224;
        if (special) expect(allowsIp(hostname)).toBe(false);
        if (mapped) expect(allowsIp(new URL(`http://[::ffff:${hostname}]/`).hostname.slice(1, -1))).toBe(false);
      }),
      { numRuns: 500, seed: 5 },
    );
  });

  test("public addresses pass", () => {
    const { allowsIp } = addressRules([]);
    for (const ip of [
      "1.1.1.1",
      "93.184.216.34",
      "172.32.0.1",
      "100.128.0.1",
      "2606:4700::1111",
      "2001:4860:4860::8888",
    ]) {
      expect([ip, allowsIp(ip)]).toEqual([ip, true]);
    }
  });

  test("names are checked after they are resolved", async () => {
    asked = [];
    const resolve = resolving({ "inside.example": [["10.0.0.7"]], "localhost.": [["127.0.0.1", "::1"]] });
    const { load } = loader({ resolve });
    await expect(load(`http://inside.example:${port}/`)).rejects.toThrow(
      "inside.example is 10.0.0.7, which is not public",
    );
    await expect(load(`http://localhost.:${port}/`)).rejects.toThrow("is 127.0.0.1, which is not public");
    await expect(load("http://nowhere.example/")).rejects.toThrow("ENOTFOUND");
    expect(asked).toEqual([]);
  });

  test("a name that resolves to another address the second time (DNS rebinding) is checked again", async () => {
    asked = [];
    const own = addressRules(["*", "127.0.0.1"]);
    // The first answer is allowed here, as a public one would be elsewhere.
    const resolve = resolving({ "rebinding.example": [["127.0.0.1"], ["127.0.0.2"]] });
    const { load } = loader({ own, resolve });
    await expect(load(`http://rebinding.example:${port}/?to=/b.png`)).rejects.toThrow(
      "is 127.0.0.2, which is not public",
    );
    expect(asked).toEqual(["rebinding.example/?to=/b.png"]);
  });

  test("of several addresses only the public ones are used", async () => {
    const own = addressRules(["*", "127.0.0.1"]);
    const resolve = resolving({ "both.example": [["127.0.0.9", "127.0.0.1", "::1"]] });
    await expect(loader({ own, resolve }).load(`http://both.example:${port}/`)).resolves.toMatchObject({ width: 2 });
  });

  test.each([
    ["to another address", () => `http://127.0.0.2:${port}/secret`, "127.0.0.2 is not a public address"],
    ["to a file", () => "file:///etc/passwd", "it redirects to file:"],
    ["to a login", () => `http://user:secret@127.0.0.1:${port}/`, "it has a user name or a password"],
    ["to nothing", () => "http://", "it redirects to an invalid address"],
  ])("at a redirect %s", async (_, to, sentence) => {
    asked = [];
    const { load } = loader({ own: addressRules(["*", "127.0.0.1"]) });
    await expect(load(`http://127.0.0.1:${port}/?to=${encodeURIComponent(to())}`)).rejects.toThrow(sentence);
    expect(asked).toHaveLength(1);
  });
});

test("an answer that stalls ends with a sentence", async () => {
  const stop = new AbortController();
  const timeout = vi.spyOn(AbortSignal, "timeout").mockReturnValue(stop.signal);
  setTimeout(() => stop.abort(), 100);
  const { load } = loader({ own: addressRules(["127.0.0.1"]) });
  await expect(load(`http://127.0.0.1:${port}/stall`)).rejects.toThrow("it did not send an image within 30 s");
  timeout.mockRestore();
});

test("a connection that is reset within an answer fails only the image", async () => {
  const { load } = loader({ own: addressRules(["127.0.0.1"]) });
  await expect(load(`http://127.0.0.1:${port}/reset`)).rejects.toThrow("it cannot be fetched: ");
});

describe("a client's address", () => {
  const sentence = "the image's address cannot be used";
  const resolve = resolving({
    "images.example": [["127.0.0.1"]],
    "a.images.example": [["127.0.0.1"]],
    "inside.example": [["10.0.0.7"]],
  });
  const load = (address: string, hosts: string[], lines: string[] = []) =>
    loader({ clients: addressRules(hosts), resolve, log: (line) => lines.push(line) }).load({ address });

  test("is not fetched unless its host is allowed", async () => {
    asked = [];
    await expect(load(`http://127.0.0.1:${port}/a.png`, [])).rejects.toThrow(sentence);
    await expect(load("http://1.1.1.1/a.png", ["images.example"])).rejects.toThrow(sentence);
    await expect(load(`http://images.example:${port}/a.png`, ["images.example"])).rejects.toThrow(sentence);
    await expect(load(`http://images.example:${port}/a.png`, ["*"])).rejects.toThrow(sentence);
    expect(asked).toEqual([]);
    const allowed = ["images.example", "*.images.example", "127.0.0.0/8"];
    await expect(load(`http://images.example:${port}/a.png`, allowed)).resolves.toMatchObject({ width: 2 });
    await expect(load(`http://A.images.example.:${port}/a.png`, allowed)).rejects.toThrow(sentence); // its name does not resolve
    await expect(load(`http://a.images.example:${port}/a.png`, allowed)).resolves.toMatchObject({ width: 2 });
    const elsewhere = encodeURIComponent("http://1.1.1.1/");
    await expect(load(`http://images.example:${port}/?to=${elsewhere}`, allowed)).rejects.toThrow(sentence);
  });

  test("gets the same sentence for every cause, which only the log has", async () => {
    const allowed = ["images.example", "inside.example", "127.0.0.1", "missing.example"];
    const causes: [string, string][] = [
      ["http://127.0.0.2/", "127.0.0.2 is not an allowed host"],
      ["http://inside.example/", "inside.example is 10.0.0.7, which is not public"],
      ["http://missing.example/", "ENOTFOUND"],
      ["http://127.0.0.1:1/", "ECONNREFUSED"],
      [`http://images.example:${port}/secret`, "it answered 403"],
      [`http://images.example:${port}/text`, "unknown format"],
      ["http://[", "it is not an address"],
      [`http://images.example/${"a".repeat(9000)}`, "it is longer than 8192 characters"],
    ];
    const told = new Set<string>();
    for (const [address, cause] of causes) {
      const lines: string[] = [];
      const error = await load(address, allowed, lines).catch((error: Error & { hint?: string }) => error);
      told.add(`${(error as Error).name} ${(error as Error).message} ${(error as { hint: string }).hint}`);
      expect(lines).toEqual([expect.stringContaining(cause)]);
    }
    expect([...told]).toEqual([expect.stringContaining(sentence)]);
  });

  test("is not answered from what the user's own data fetched", async () => {
    const both = loader({ own: addressRules(["*", "127.0.0.1"]), clients: addressRules([]) });
    await both.load(`http://127.0.0.1:${port}/a.png`);
    await expect(both.load({ address: `http://127.0.0.1:${port}/a.png` })).rejects.toThrow(sentence);
  });

  test("is never a file of this machine", async () => {
    await expect(load("/etc/passwd", ["*"])).rejects.toThrow("has no comma after its type");
    await expect(load("file:///etc/passwd", ["*"])).rejects.toThrow("has no comma after its type");
  });
});

test.each(["http://a.example", "a.example:80", "10.0.0.0/33", "a/b", "*.", "", "::1/129"])(
  "an entry of a list of hosts that is none is refused: %s",
  (entry) => {
    expect(() => addressRules([entry])).toThrow(`"${entry}" is not a host, an IP address or a network`);
  },
);
