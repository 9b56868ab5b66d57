import { chmodSync, writeFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { UserError } from "../base/errors.ts";
import { rawRequest } from "../base/raw-request.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { openTunnel } from "./http.ts";
import { type TestGatewayOptions, testGateway } from "./open-gateway.fixture.ts";

describe("tunnel", () => {
  const folder = temporaryFolder("tunnel");
  beforeEach(() => void vi.stubEnv("PATH", `${folder}${delimiter}${process.env.PATH}`));
  afterEach(() => void vi.unstubAllEnvs());

  function program(name: string, lines: readonly string[], then: string): void {
    const script = `#!/bin/sh\necho "args: $*" >&2\ncat <<'END' ${name === "ngrok" ? "" : ">&2"}\n${lines.join("\n")}\nEND\n${then}\n`;
    writeFileSync(join(folder, name), script);
    chmodSync(join(folder, name), 0o755);
  }

  const quick = [
    "2026-11-11T19:57:55Z INF Thank you for trying Cloudflare Tunnel. See https://developers.cloudflare.com/cloudflare-one/",
    "2026-11-11T19:57:55Z INF Requesting new quick Tunnel on trycloudflare.com...",
    "2026-11-11T19:57:58Z INF +--------------------------------------------------------------------------------------------+",
    "2026-11-11T19:57:58Z INF |  Your quick Tunnel has been created! Visit it at (it may take some time to be reachable):  |",
    "2026-11-11T19:57:58Z INF |  https://four-dashed-word-url.trycloudflare.com                                            |",
    "2026-11-11T19:57:58Z INF +--------------------------------------------------------------------------------------------+",
  ];
  const session = [
    't=2026-11-11T10:00:00+0000 lvl=info msg="starting web service" obj=web addr=127.0.0.1:4040',
    't=2026-11-11T10:00:01+0000 lvl=info msg="client session established" obj=tunnels.session',
    't=2026-11-11T10:00:01+0000 lvl=info msg="started tunnel" obj=tunnels name=command_line addr=http://localhost:4100 url=https://9c2d.ngrok-free.app',
  ];

  test.each([
    ["cloudflared", quick, "https://four-dashed-word-url.trycloudflare.com"],
    ["ngrok", session, "https://9c2d.ngrok-free.app"],
  ])("%s: reads the address, and ends with the tunnel", async (name, lines, url) => {
    const ended: string[] = [];
    program(name, lines, "exec sleep 600");
    const tunnel = await openTunnel(name, 4100, (why) => ended.push(why));
    expect(tunnel.url).toBe(url);
    await tunnel.close();
    expect(ended).toEqual([]);
  });

  test("a program that ends later is reported", async () => {
    program("cloudflared", quick, "sleep 0.3; exit 1");
    const why = await new Promise<string>((resolve) => void openTunnel("cloudflared", 4100, resolve));
    expect(why).toContain(
      "cloudflared ended with exit code 1; agents on other machines can no longer reach the gateway",
    );
  });

  test.each([
    [
      "ends",
      ["failed to request quick Tunnel: lookup api.trycloudflare.com: no such host"],
      "exit 1",
      /exit code 1\n.*\n.*no such host/,
    ],
    ["prints no address", ["INF Requesting new quick Tunnel"], "exec sleep 600", /no address within 0.5 seconds/],
    ["opens one on this machine", ["INF |  https://localhost  |"], "exec sleep 600", /which only this machine reaches/],
  ])("a program that %s is an error with what it said", async (_name, lines, then, message) => {
    program("cloudflared", lines, then);
    await expect(openTunnel("cloudflared", 4100, () => {}, 0.5)).rejects.toThrow(message);
  });

  test("a missing program is named", async () => {
    vi.stubEnv("PATH", folder);
    const { rmSync } = await import("node:fs");
    rmSync(join(folder, "ngrok"), { force: true });
    await expect(openTunnel("ngrok", 4100, () => {})).rejects.toThrow("the program ngrok is not installed");
  });
});

describe("access", () => {
  let opened: Awaited<ReturnType<typeof testGateway>> | undefined;
  afterEach(async () => {
    await opened?.close();
    opened = undefined;
  });

  const publicUrl = "https://gateway.example.com";
  const json = { "content-type": "application/json" };
  const hello = JSON.stringify({ messages: [{ role: "user", content: "hello" }] });

  async function open(options: Partial<TestGatewayOptions> = {}) {
    opened = await testGateway({ reply: () => "well", ...options });
    const local = opened.gateway.localOrigin;
    const session = `${local}/s/train-1%2Ftask%3A0/a/0`;
    const post = (url: string, headers: Record<string, string>, body = hello) =>
      rawRequest(url, { method: "POST", headers: { ...json, ...headers }, body });
    return { ...opened, local, session, post };
  }

  test("a tunnel with the default admin token is refused", async () => {
    for (const adminToken of [undefined, "my-shared-secret", ""]) {
      const options = adminToken === undefined ? { publicUrl } : { publicUrl, adminToken };
      await expect(open(options)).rejects.toThrow(UserError);
      await expect(open(options)).rejects.toThrow(/gateway\.example\.com.*default admin token/);
    }
    await expect(open({ publicUrl: "gateway.example.com", adminToken: "x" })).rejects.toThrow(/not an http/);
  });

  test("behind a tunnel calls, rewards, models and traces require a key, and a warning names the address", async () => {
    const { local, session, post, entry, lines } = await open({ publicUrl, adminToken: "a secret" });
    expect(lines.join()).toContain(publicUrl);
    const key = { authorization: `Bearer ${entry.apiKey}` };
    const result = `${local}${new URL(entry.resultURL).pathname}`;
    const urls = [`${session}/v1/chat/completions`, `${session}/v1/messages`, `${session}/result`];
    for (const url of urls) expect((await post(url, {}, '{"reward":1}')).status).toBe(401);
    for (const path of ["/v1/models", "/v1/models/policy", "/admin/traces?session=train-1/task:0"]) {
      expect((await rawRequest(local + path, { headers: { authorization: "Bearer my-shared-secret" } })).status).toBe(
        401,
      );
    }
    expect((await post(urls[0]!, { ...key, host: "gateway.example.com" })).status).toBe(200);
    expect((await post(urls[2]!, key, '{"reward":1}')).status).toBe(404);
    expect((await post(result, {}, '{"reward":1}')).status).toBe(200);
  });

  test("a tunnel to this machine itself needs no key", async () => {
    const { session, post, lines } = await open({ publicUrl: "http://localhost:9999" });
    expect((await post(`${session}/v1/chat/completions`, { host: "localhost:9999" })).status).toBe(200);
    expect(lines).toEqual([]);
  });

  test("a foreign Host or an Origin cannot read traces or post rewards with the default token", async () => {
    const { local, session, post, entry, abort } = await open();
    const admin = { authorization: "Bearer my-shared-secret" };
    for (const web of [
      { host: "evil.com" },
      { host: "evil.com:80" },
      { origin: "https://evil.com" },
      { origin: "null" },
    ]) {
      const headers = { ...admin, ...web } as Record<string, string>;
      const traces = await rawRequest(`${local}/admin/traces?session=train-1/task:0`, { headers });
      const result = await post(entry.resultURL, headers, '{"reward":1}');
      const chat = await post(`${session}/v1/chat/completions`, headers);
      expect([traces.status, result.status, chat.status]).toEqual([403, 403, 403]);
      expect(JSON.parse(chat.text)).toMatchObject({ error: { code: "forbidden" } });
      expect(JSON.parse((await post(`${session}/v1/messages`, headers)).text)).toMatchObject({
        error: { type: "permission_error" },
      });
    }
    expect((await rawRequest(`${local}/admin/metrics`, { headers: admin })).status).toBe(401);
    expect((await post(entry.resultURL, {}, '{"reward":0}')).status).toBe(200);
    expect(await entry.result(abort.signal)).toEqual({ reward: 0 });
  });

  test("a forwarded port, 127.0.0.1 and localhost are answered", async () => {
    const { session, post } = await open();
    for (const host of ["localhost:12345", "127.0.0.1:1", "[::1]:8080", "localhost"]) {
      expect((await post(`${session}/v1/chat/completions`, { host })).status).toBe(200);
    }
  });

  test("a body that is not declared as JSON is refused", async () => {
    const { session, post, entry } = await open();
    for (const type of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]) {
      const answers = await Promise.all(
        [`${session}/v1/chat/completions`, `${session}/v1/messages`, entry.resultURL].map((url) =>
          post(url, { "content-type": type }),
        ),
      );
      expect(answers.map(({ status }) => status)).toEqual([415, 415, 415]);
    }
    const none = await rawRequest(entry.resultURL, { method: "POST", body: '{"reward":1}' });
    expect(none.status).toBe(415);
  });

  test("a model's name that is not percent-encoded is unknown, not a failure", async () => {
    const { local, session } = await open();
    for (const path of ["/v1/models/%", "/v1/models/%zz", "/v1/models/%ff"]) {
      for (const base of [local, session]) {
        const answer = await rawRequest(base, { path: new URL(base).pathname.replace(/\/$/, "") + path });
        expect([answer.status, JSON.parse(answer.text)]).toMatchObject([404, { error: { code: "not_found" } }]);
      }
    }
  });
});
