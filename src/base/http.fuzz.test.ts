/**
 * Random requests to the gateway and to the Tinker server: an answer is never a failure of the server, errors have the
 * API's own shape, no secret is revealed, and the server keeps running.
 */
// Slow: random requests.
import { connect } from "node:net";
import { expect, test } from "vitest";
import { fuzzCases, fuzzTimeout } from "../fuzz-time.fixture.ts";
import { openGatewayTarget } from "./fuzz-gateway.fixture.ts";
import { type FuzzRequest, mutate } from "./fuzz-request.fixture.ts";
import { openServeTarget } from "./fuzz-serve.fixture.ts";
import { type Answer, secrets, type Target } from "./fuzz-target.fixture.ts";
import { deriveSeed, uniforms } from "./values.ts";

/** Number of requests before the servers are restarted with other settings. */
const roundLength = 300;
/** The run ends after this many failures. */
const maxFailures = 10;

/** Bytes that are not HTTP: the server must close the connection. */
async function sendGarbage(url: string, random: () => number): Promise<void> {
  const { hostname, port } = new URL(url);
  const bytes = Buffer.from(Array.from({ length: 200 }, () => Math.floor(random() * 256)));
  const head = ["", "GET / HTTP/1.1\r\n", "POST /v1 HTTP/1.1\r\nhost: a\r\ncontent-length: -5\r\n\r\n"][
    Math.floor(random() * 3)
  ]!;
  const said = await new Promise<string>((resolve) => {
    const socket = connect(Number(port), hostname);
    let text = "";
    socket.on("data", (data) => {
      text += data;
    });
    socket.once("close", () => resolve(text));
    socket.on("error", () => {});
    socket.end(Buffer.concat([Buffer.from(head), bytes]));
  });
  expect(said).not.toMatch(/^HTTP\/1\.1 5/);
}

function check(target: Target, request: FuzzRequest, answer: Answer): void {
  const { status, type, text } = answer;
  expect(status).toBeLessThan(500);
  // Streams report errors as their last event.
  expect(text).not.toMatch(/"type":"(server_error|api_error)"/);
  expect(text).not.toMatch(/\n\s+at .+:\d+:\d+|Traceback \(most recent/);
  for (const secret of target.secrets) expect(text).not.toContain(secret);
  if (status < 400 || request.method === "HEAD") return;
  expect(type).toMatch(/^application\/json/);
  target.checkError(answer);
}

test(
  "fuzz: random requests cause no failure, reveal no secret, and leave the servers alive",
  async () => {
    process.env.HONE_FUZZ_SECRET = secrets.environment;
    const statuses = new Map<string, number>();
    let targets: Target[] = [];
    const failures: string[] = [];
    let cases = 0;
    const endRound = async () => {
      for (const target of targets) {
        await sendGarbage(target.url, uniforms(deriveSeed("garbage", cases)));
        await target.alive();
        await target.close();
      }
      targets = [];
    };
    try {
      for (const index of fuzzCases(1200)) {
        if (index % roundLength === 0) {
          await endRound();
          const keyed = (index / roundLength) % 2 === 1;
          targets = [await openGatewayTarget(keyed), await openServeTarget(keyed)];
        }
        const random = uniforms(deriveSeed(11, "http", index));
        const target = targets[index % targets.length]!;
        const template = target.templates[Math.floor(random() * target.templates.length)]!;
        const request = mutate(template, random);
        try {
          const answer = await target.send(request, random);
          for (const each of [answer, ...((await target.follow?.(answer)) ?? [])]) check(target, request, each);
          const status = `${index % 2 === 0 ? "gateway" : "serve"} ${answer.status}`;
          statuses.set(status, (statuses.get(status) ?? 0) + 1);
        } catch (error) {
          const shown = { ...request, body: request.body && Buffer.from(request.body).toString().slice(0, 1500) };
          failures.push(`case ${index}: ${JSON.stringify(shown)}\n${error}`);
          if (failures.length >= maxFailures) break;
        }
        cases++;
      }
      await endRound();
      expect(failures.join("\n\n")).toBe("");
    } finally {
      delete process.env.HONE_FUZZ_SECRET;
      for (const target of targets) await target.close();
      const counts = [...statuses].sort().map(([status, count]) => `${status}: ${count}`);
      process.stdout.write(`fuzz of HTTP: ${cases} cases; ${counts.join(", ")}\n`);
    }
  },
  fuzzTimeout,
);
