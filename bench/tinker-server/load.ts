/** Many concurrent clients of a tiny model: their answers, the latency of heartbeats, and the memory over time. */
import { spawn } from "node:child_process";
import { setMaxListeners } from "node:events";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { formatBytes } from "../../src/base/files.ts";
import { makeTinyModel } from "../../src/base/python.fixture.ts";
import type { Load, Measured } from "./clients.ts";
import { type ServeProcess, startServe } from "./serve-process.ts";

export interface LoadOptions {
  samplers: number;
  trainers: number;
  seconds: number;
  folder: string;
}

/** The interval at which a client sends one. */
const heartbeatMs = 10_000;
const maxP99Ms = 100;
/** Memory of the last third divided by that of the second. */
const maxGrowth = 1.05;

export async function runLoad({ folder, ...options }: LoadOptions): Promise<void> {
  const { samplers, trainers, seconds } = options;
  const model = await makeTinyModel(join(folder, "model"));
  const serve = await startServe(`tiny=${model}`, folder, ["--dtype", "float32", "--device", "cpu"]);
  try {
    console.log(`${samplers} samplers and ${trainers} trainers for ${seconds} s`);
    const clients = runClients({ ...options, url: serve.url, model: "tiny" });
    const ended = new AbortController();
    setMaxListeners(0, ended.signal);
    const latencies = heartbeats(serve.url, samplers + trainers, ended.signal);
    const memory = await watchMemory(serve, seconds, clients);
    const measured = await clients;
    ended.abort();
    const metrics = await (await fetch(`${serve.url}/metrics`)).text();
    for (const [, quantile, value] of metrics.matchAll(/hone_event_loop_seconds\{quantile="([\d.]+)"\} (\S+)/g)) {
      console.log(
        `the server's loop was late by ${(1000 * Number(value)).toFixed(1)} ms at most, in ${100 * Number(quantile)}%`,
      );
    }
    report(measured, await latencies, memory, seconds);
  } finally {
    await serve.stop();
  }
}

async function runClients(load: Load): Promise<Measured> {
  const script = fileURLToPath(new URL("clients.ts", import.meta.url));
  const child = spawn(process.execPath, ["--import", "tsx", script, JSON.stringify(load)], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  return JSON.parse(await text(child.stdout)) as Measured;
}

/** Milliseconds of each heartbeat of these sessions, sent by this process, which does nothing else. */
async function heartbeats(url: string, sessions: number, signal: AbortSignal): Promise<number[]> {
  const latencies: number[] = [];
  const post = async (path: string, body: object) => {
    const response = await fetch(`${url}/api/v1/${path}`, {
      ...{ method: "POST", headers: { "content-type": "application/json", "x-api-key": "tml-local" } },
      body: JSON.stringify(body),
    });
    if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
    return (await response.json()) as Record<string, unknown>;
  };
  const beat = async (index: number) => {
    const { session_id } = await post("create_session", { type: "create_session", tags: [] });
    await sleep((index / sessions) * heartbeatMs, undefined, { signal });
    while (!signal.aborted) {
      const begin = performance.now();
      await post("session_heartbeat", { type: "session_heartbeat", session_id });
      latencies.push(performance.now() - begin);
      await sleep(heartbeatMs, undefined, { signal });
    }
  };
  await Promise.all(
    Array.from({ length: sessions }, (_, index) =>
      beat(index).catch((error: unknown) => {
        if (!signal.aborted) throw error;
      }),
    ),
  );
  return latencies.sort((left, right) => left - right);
}

interface MemoryAt {
  seconds: number;
  server: number;
  worker: number;
}

async function watchMemory(serve: ServeProcess, seconds: number, until: Promise<unknown>): Promise<MemoryAt[]> {
  const begin = performance.now();
  const found: MemoryAt[] = [];
  let over = false;
  void until.finally(() => {
    over = true;
  });
  const every = Math.min(seconds / 3, Math.max(5, seconds / 20));
  for (let due = every; !over && due <= seconds; due += every) {
    while (!over && performance.now() - begin < 1000 * due) await sleep(100);
    const at = { seconds: Math.round((performance.now() - begin) / 1000), ...serve.memory() };
    found.push(at);
    console.log(
      `  ${String(at.seconds).padStart(4)} s: server ${formatBytes(at.server)}, worker ${formatBytes(at.worker)}`,
    );
  }
  return found;
}

function report(measured: Measured, latencies: readonly number[], memory: readonly MemoryAt[], seconds: number): void {
  const { statuses, errors, samples, steps } = measured;
  const answers = Object.values(statuses).reduce((sum, count) => sum + count, 0);
  console.log(`${answers} answers, ${samples} samples (${(samples / seconds).toFixed(1)}/s), ${steps} training steps`);
  // A long poll answers 408 while there is no result.
  const failed = Object.entries(statuses).filter(([key]) => !/ (2\d\d|408|429)$/.test(key));
  const busy = Object.entries(statuses).filter(([key]) => / 429$/.test(key));
  for (const [key, count] of [...failed, ...busy]) console.log(`  ${key}: ${count}`);
  for (const error of new Set(errors)) console.log(`  ${error}`);
  const at = (share: number) => latencies[Math.min(latencies.length - 1, Math.floor(share * latencies.length))]!;
  console.log(
    `${latencies.length} heartbeats: median ${at(0.5).toFixed(1)} ms, p99 ${at(0.99).toFixed(1)} ms, longest ${at(1).toFixed(1)} ms`,
  );
  const third = (part: number, of: "server" | "worker") => {
    const values = memory.slice(Math.floor((part * memory.length) / 3), Math.floor(((part + 1) * memory.length) / 3));
    return values.reduce((sum, value) => sum + value[of], 0) / values.length;
  };
  const growth = (["server", "worker"] as const).map((of) => third(2, of) / third(1, of));
  console.log(
    `memory of the last third over the second: server ${growth[0]!.toFixed(3)}, worker ${growth[1]!.toFixed(3)}`,
  );
  const held = {
    "no error but 429": failed.length === 0 && errors.length === 0,
    "p99 of a heartbeat below 100 ms": at(0.99) < maxP99Ms,
    "memory flat": growth.every((value) => value < maxGrowth),
  };
  for (const [what, holds] of Object.entries(held)) console.log(`${holds ? "holds" : "FAILS"}: ${what}`);
}
