/** Servers that start, fail to start, and end, with a program that stands in for the inference server. */
// Slow: servers are programs.

import { chmodSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { params } from "../../../conformance/tools.ts";
import { RunError } from "../../base/errors.ts";
import { ends, isAlive } from "../../base/processes.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import { composeEngine, EngineDied } from "../engine-parts.ts";
import { explainedBy, startServer } from "./process.ts";

const root = temporaryFolder("server-process");
let count = 0;

/** @param script runs with `port` and `name` set, after it was told to serve its name */
function start(script: string) {
  const python = join(root, `python-${++count}`);
  const logFile = join(root, `${count}.log`);
  writeFileSync(python, `#!${process.execPath}\nconst [name, port] = process.argv.slice(2);\n${script}`);
  chmodSync(python, 0o755);
  const statuses: string[] = [];
  const starting = startServer({
    name: "the test server",
    python,
    launch: ({ servedName, port, apiKey }) => ({ args: [servedName, `${port}`], env: { KEY: apiKey } }),
    logFile,
    onStatus: (text) => statuses.push(text),
  });
  return { starting, statuses, logFile };
}

const serve = (name = "name") => `
console.error("ready on", process.pid);
require("node:http").createServer((request, response) => {
  const allowed = request.headers.authorization === "Bearer " + process.env.KEY;
  response.writeHead(allowed ? 200 : 401).end(JSON.stringify({ data: [{ id: ${name} }] }));
}).listen(port, "127.0.0.1");`;
const pidIn = (log: string) => Number(/ready on (\d+)/.exec(readFileSync(log, "utf8"))?.[1]);

test("a server is ready when it answers, and stopping it ends the programs that it started", async () => {
  const helper = `const child = require("node:child_process").spawn("sleep", ["600"]); console.log("helper", child.pid);`;
  const { starting, statuses, logFile } = start(helper + serve());
  const server = await starting;
  expect(statuses[0]).toMatch(/^starting the test server; its log is .*\.log$/);
  const child = Number(/helper (\d+)/.exec(readFileSync(logFile, "utf8"))?.[1]);
  expect([isAlive(pidIn(logFile)), isAlive(child)]).toEqual([true, true]);
  await server.stop();
  expect(await ends(pidIn(logFile))).toBe(true);
  expect(await ends(child)).toBe(true);
  await expect(server.died).resolves.toBeInstanceOf(EngineDied);
});

test("a server that ends before it answers names the first cause in its log", async () => {
  const { starting } = start(`
    console.error("(EngineCore pid=5) ERROR 11-22 12:00:00 [core.py:9] ValueError: 3 GiB of cache do not suffice");
    console.error("  File engine.py, line 3");
    console.error("RuntimeError: Engine core initialization failed. See root cause above.");
    process.exit(1);`);
  await expect(starting).rejects.toThrow(
    /^the test server ended with exit code 1: ValueError: 3 GiB of cache do not suffice\.$/,
  );
});

test("a program that cannot be started is named", async () => {
  const { starting } = start("");
  await expect(starting).rejects.toThrow(/the test server ended with exit code 0/);
  const missing = startServer({
    name: "the test server",
    python: join(root, "nothing"),
    launch: () => ({ args: [], env: {} }),
    logFile: undefined,
    onStatus: () => {},
  });
  await expect(missing).rejects.toThrow(/cannot start the test server .*ENOENT/);
});

test("another server on its port is not taken for it", async () => {
  const { starting } = start(`${serve('"another"')} setTimeout(() => process.exit(3), 1500);`);
  await expect(starting).rejects.toThrow(/exit code 3/);
});

test("a request that fails because the server died fails with the reason, and so does the engine", async () => {
  const { starting, logFile } = start(serve());
  const server = await starting;
  const tabular = tabularEngine({ alphabet: "abc" });
  const policy = await tabular.createPolicy({ adapter: { kind: "none" } });
  const slept: string[] = [];
  const failing = async () => ({
    ...policy,
    sampler: {
      ...policy.sampler,
      sleep: async () => void slept.push("sleep"),
      wake: async () => void slept.push("wake"),
      // biome-ignore lint/correctness/useYield: it fails first
      async *sample() {
        const { status } = await fetch(`${server.url}/v1/models`);
        if (status === 401) process.kill(pidIn(logFile), "SIGKILL");
        throw new Error("other side closed");
      },
    },
  });
  const samplers = { createPolicy: explainedBy(server, failing), close: async () => {} };
  const engine = composeEngine({
    trainer: tabular,
    samplers,
    programs: [{ died: server.died, close: server.stop }],
  });
  const { sampler } = await engine.createPolicy({ adapter: { kind: "none" } });
  await sampler.sleep?.();
  await sampler.wake?.();
  expect(slept).toEqual(["sleep", "wake"]);
  const request = { prompt: Int32Array.of(1), params: params({ maxTokens: 1 }) };
  await expect(sampler.sample([request])[Symbol.asyncIterator]().next()).rejects.toThrow(
    /^the test server ended by SIGKILL: .*memory/,
  );
  expect((await engine.died)?.message).toMatch(/test server ended by SIGKILL/);
  await engine.close();
  expect(existsSync(logFile)).toBe(true);
});

test("a request to a server whose engine has died fails with the engine's own error", async () => {
  const { starting } = start(`
    let dead = false;
    require("node:http").createServer((request, response) => {
      response.writeHead(dead && request.url === "/health" ? 503 : 200).end(name);
      if (dead || request.url !== "/die") return;
      dead = true;
      console.error("(EngineCore pid=5) ERROR 11-23 20:40:39 [core.py:1512] TimeoutError: RPC call to sample_tokens timed out.");
      console.error("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)");
      setTimeout(() => process.exit(0), 300);
    }).listen(port, "127.0.0.1");`);
  const server = await starting;
  const createPolicy = explainedBy(server, async () => {
    await fetch(`${server.url}/die`);
    throw new RunError("it answers 503 to /health", { code: "server_unreachable", hint: "start it" });
  });
  await expect(createPolicy({ adapter: { kind: "none" } })).rejects.toMatchObject({
    message: "the test server ended with exit code 0: TimeoutError: RPC call to sample_tokens timed out.",
    hint: expect.stringContaining("Raise local.sampler.timeout"),
  });
});

test("a server that hangs is not to be started by the user", async () => {
  const unreachable = new RunError("it does not answer", { code: "server_unreachable", hint: "start it" });
  const hanging = { answers: async () => false, died: new Promise<never>(() => {}) };
  const createPolicy = explainedBy(hanging, () => Promise.reject(unreachable), 1);
  await expect(createPolicy({ adapter: { kind: "none" } })).rejects.toMatchObject({
    message: "it does not answer",
    hint: expect.stringContaining("--resume"),
  });
});
