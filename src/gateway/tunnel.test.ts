/** The programs are stand-ins that print what cloudflared and ngrok document; they were not run themselves. */
import { chmodSync, writeFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { openTunnel } from "./tunnel.ts";

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
  expect(why).toContain("cloudflared ended with exit code 1; agents on other machines can no longer reach the gateway");
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
