import { rmSync } from "node:fs";
import { openTraceDatabase } from "../src/gateway/traces/database.ts";
import { openTraceStore } from "../src/gateway/traces/open-trace-store.ts";

const file = "/tmp/gate-prof/w.db";
for (const f of [file, file + "-wal", file + "-shm"]) rmSync(f, { force: true });
const store = openTraceStore({ path: file, flushMs: 1e9 });
let n = 0;
const make = () => ({
  id: `chatcmpl-${crypto.randomUUID()}`,
  session: `bench-${n % 64}`,
  attempt: 0,
  role: "agent",
  api: "chat.completions",
  model: "policy",
  startedMs: Date.now(),
  latencyMs: 3.2,
  status: "ok" as const,
  error: null,
  stopReason: "stop",
  policyVersion: 0,
  messages: [
    { role: "system", content: "You are a careful assistant who answers in one short sentence." },
    {
      role: "user",
      content: `Train ${n++} leaves at nine and arrives at a quarter past eleven. How long did it take?`,
    },
  ],
  tools: null,
  reply: { role: "assistant", content: "Hello world" },
  params: { maxTokens: 64, temperature: 1, topP: 1, topK: -1, minP: 0, seed: 12345 },
  promptTokens: new Int32Array(60).fill(300),
  tokens: new Int32Array(3).fill(5),
  logprobs: new Float32Array(3).fill(-0.5),
  metadata: {},
});
for (let round = 0; round < 5; round++) {
  const traces = Array.from({ length: 1500 }, make);
  const c0 = process.cpuUsage();
  const t0 = performance.now();
  for (const t of traces) store.trace(t);
  store.flush();
  const c = process.cpuUsage(c0);
  console.log(
    "per trace us",
    (((performance.now() - t0) * 1000) / 1500).toFixed(1),
    "cpu",
    ((c.user + c.system) / 1500).toFixed(1),
  );
}
store.close();
