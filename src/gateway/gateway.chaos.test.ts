/** A thousand calls over HTTP to a failing engine: each is answered once and counted by its outcome. */
// Slow: engines that fail and stall.
import { expect, test } from "vitest";
import type { Sample } from "../backends/engine.ts";
import { uniforms } from "../base/values.ts";
import type { SampleSource } from "../rollout/sample-queue.ts";
import { characterChat } from "../testing/scripted.ts";
import { openGateway } from "./gateway.ts";
import { policySessions } from "./sessions.ts";
import { openTraceStore } from "./traces/store.ts";

const calls = 1000;
/** The outcomes of engine calls. */
const fates = [
  "sound",
  "fails",
  "stalls",
  "ends early",
  "breaks off",
  "rubbish",
  "no log-probabilities",
  "stray",
] as const;
type Fate = (typeof fates)[number];

test("an engine that fails, stalls, drops streams and answers rubbish", { timeout: 120_000 }, async () => {
  const chat = characterChat();
  const random = uniforms(7);
  const tokens = chat.encode("all is well<|end|>");
  /** Clients that disconnect once the engine has their call. */
  const leaving = new Map<string, AbortController>();
  const engine: SampleSource = {
    async *sample(requests, { signal, onToken } = {}) {
      for (const [index, request] of requests.entries()) {
        const fate = fateOf(chat.decode(request.prompt));
        if (fate === "fails") throw new Error("out of memory");
        if (fate === "ends early") return;
        if (fate === "stalls") {
          leaving.get(/stalls:(\d+)/.exec(chat.decode(request.prompt))![1]!)?.abort();
          await untilAborted(signal, request.signal);
        }
        if (fate === "breaks off") {
          for (const token of tokens.slice(0, 5)) onToken?.(index, token, 0);
          throw new Error("the connection was lost");
        }
        if (fate === "stray") yield { ...sample(requests.length + 3) };
        if (fate === "rubbish") yield { ...sample(index), logprobs: new Float32Array(tokens.length).fill(Number.NaN) };
        else if (fate === "no log-probabilities") yield { ...sample(index), logprobs: new Float32Array(0) };
        else {
          for (const token of tokens) onToken?.(index, token, 0);
          yield sample(index);
          // Twice: the second one must be ignored.
          yield sample(index);
        }
      }
    },
  };
  const sample = (request: number): Sample => ({
    ...{ request, tokens, logprobs: new Float32Array(tokens.length), stopReason: "stop", policyVersion: 3 },
  });
  const store = openTraceStore({ path: ":memory:" });
  const limits = { maxPromptLength: 200, maxResponseLength: 100 };
  const gateway = await openGateway({
    ...{ chat, model: "policy", store, callTimeoutSeconds: 2 },
    // Each session makes one call and has its own queue, so outcomes do not mix.
    openUnknown: (source) => policySessions({ sampler: engine, chat, limits })(source),
  });

  const seen: Record<string, number> = {};
  const expected: Record<string, number> = { ok: 0, failed: 0, refused: 0, cancelled: 0 };
  const count = (what: string) => {
    seen[what] = (seen[what] ?? 0) + 1;
  };
  const call = async (index: number): Promise<void> => {
    const fate = fates[Math.floor(random() * fates.length)]!;
    const stream = random() < 0.5;
    const tooLong = random() < 0.05;
    const leaves = fate === "stalls" && random() < 0.5;
    const content = `${fate}:${index}${tooLong ? "x".repeat(300) : ""}`;
    const outcome = tooLong ? "refused" : leaves ? "cancelled" : fate === "sound" ? "ok" : "failed";
    expected[outcome]!++;
    const abort = new AbortController();
    if (leaves) leaving.set(String(index), abort);
    const answer = await fetch(`${gateway.origin}/s/mad-${index}/a/0/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ model: "m", stream, messages: [{ role: "user", content }] }),
      signal: abort.signal,
    })
      .then(async (response) => ({ status: response.status, text: await response.text() }))
      .catch((error: Error) => error);
    if (answer instanceof Error) {
      expect([leaves, answer.name]).toEqual([true, "AbortError"]);
      return count("cancelled");
    }
    const { status, text } = answer;
    if (!text.includes('"error":{')) {
      expect([fate, tooLong, status]).toEqual(["sound", false, 200]);
      const said = stream ? [...text.matchAll(/"content":"([^"]*)"/g)].map(([, piece]) => piece).join("") : text;
      expect(said).toContain("all is well");
      return count("ok");
    }
    // A stream that has begun can report an error only as its last event.
    expect([outcome, status]).toEqual([
      outcome,
      stream && fate === "breaks off" && !tooLong ? 200 : expect.any(Number),
    ]);
    count(status === 400 ? "refused" : "failed");
  };
  let next = 0;
  const work = async () => {
    while (next < calls) await call(next++);
  };
  await Promise.all(Array.from({ length: 50 }, work));

  for (const outcome of Object.keys(expected)) expect([outcome, seen[outcome]]).toEqual([outcome, expected[outcome]]);
  // A disconnected client is noticed a moment later.
  await until(() => Object.values(callCounts()).reduce((sum, each) => sum + each, 0) >= calls);
  expect(callCounts()).toEqual(expected);
  const stored = store.sessions();
  expect(stored.reduce((sum, session) => sum + session.calls, 0)).toBe(calls);
  const traces = stored.flatMap(({ session, attempt }) => store.traces({ session, attempt }));
  for (const trace of traces) {
    expect(trace.tokens.length).toBe(trace.status === "ok" ? tokens.length : 0);
    const fate = fateOf((trace.messages as { content: string }[])[0]!.content);
    if (trace.status === "failed") expect(trace.error).toMatch(causes[fate]);
  }
  await gateway.close();
  store.close();

  function callCounts(): Record<string, number> {
    const counts = gateway.counts();
    return Object.fromEntries(Object.keys(expected).map((name) => [name, counts[`gateway/calls_${name}`]!]));
  }
});

const causes: Record<Fate, RegExp> = {
  sound: /^$/,
  fails: /out of memory/,
  stalls: /took longer than 2 s/,
  "ends early": /without answering/,
  "breaks off": /connection was lost/,
  rubbish: /log-probabilit/,
  "no log-probabilities": /log-probabilit/,
  stray: /answered (a )?request/,
};

const fateOf = (text: string): Fate => fates.find((fate) => text.includes(`${fate}:`))!;

const untilAborted = (...signals: (AbortSignal | undefined)[]) =>
  new Promise<never>((_, reject) => {
    for (const signal of signals) signal?.addEventListener("abort", () => reject(signal.reason), { once: true });
  });

async function until(holds: () => boolean): Promise<void> {
  for (let tries = 0; tries < 500 && !holds(); tries++) await new Promise((resolve) => setTimeout(resolve, 10));
}
