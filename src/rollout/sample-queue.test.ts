import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import type { Sample, SampleOptions, SampleRequest } from "../backends/engine.ts";
import { plainParams } from "../backends/engine-parts.ts";
import { createSampleQueue } from "./sample-queue.ts";

const never = new AbortController().signal;

/** An engine whose calls are answered by hand; the first prompt token identifies a request. */
function handEngine() {
  const calls: {
    prompts: number[];
    signal: AbortSignal;
    answer(request: number, reason?: Sample["stopReason"]): void;
    end(error?: unknown): void;
  }[] = [];
  async function* sample(requests: readonly SampleRequest[], { signal }: SampleOptions = {}): AsyncGenerator<Sample> {
    const ready: Sample[] = [];
    let ended: { error?: unknown } | undefined;
    let wake = () => {};
    calls.push({
      prompts: requests.map(({ prompt }) => prompt[0]!),
      signal: signal!,
      answer(request, stopReason = "stop") {
        ready.push({
          request,
          stopReason,
          tokens: Int32Array.of(request),
          logprobs: Float32Array.of(0),
          policyVersion: 0,
        });
        wake();
      },
      end(error) {
        ended = { error };
        wake();
      },
    });
    for (;;) {
      const next = ready.shift();
      if (next) yield next;
      else if (ended) break;
      else await new Promise<void>((resolve) => (wake = resolve));
    }
    if (ended.error) throw ended.error;
  }
  return { calls, sample };
}

const request = (prompt: number): SampleRequest => ({
  prompt: Int32Array.of(prompt),
  params: plainParams,
});
/** Runs what is due at once, but not the 20 ms timer. */
const soon = async () => {
  for (let turn = 0; turn < 4; turn++) await setImmediate();
};
const slow = 1e6;

test("waits for every live rollout, then makes one call in the order of the rollouts", async () => {
  const engine = handEngine();
  const queue = createSampleQueue(engine, slow);
  const [late, early, other] = [queue.join([1, 0]), queue.join([0, 1]), queue.join([0, 0])];
  const samples = [late.sample(request(10), 0, never), early.sample(request(1), 0, never)];
  await soon();
  expect(engine.calls).toEqual([]);
  samples.push(other.sample(request(0), 0, never));
  await soon();
  expect(engine.calls.map((call) => call.prompts)).toEqual([[0, 1, 10]]);
  for (const index of [2, 0, 1]) engine.calls[0]!.answer(index);
  expect((await Promise.all(samples)).map((sample) => sample.request)).toEqual([2, 1, 0]);
});

test("does not wait for a rollout that has ended, and keeps several calls in flight", async () => {
  const engine = handEngine();
  const queue = createSampleQueue(engine, slow);
  const [first, second] = [queue.join([0, 0]), queue.join([1, 0])];
  const one = first.sample(request(0), 0, never);
  await soon();
  expect(engine.calls.length).toBe(0);
  second.leave();
  second.leave();
  await soon();
  expect(engine.calls.length).toBe(1);
  // Its first call is still in flight: it waits, and a new rollout's request does not.
  const third = queue.join([2, 0]);
  const two = third.sample(request(2), 0, never);
  await soon();
  expect(engine.calls.map((call) => call.prompts)).toEqual([[0], [2]]);
  engine.calls[1]!.answer(0);
  await two;
  engine.calls[0]!.answer(0);
  await one;
});

test("a caller hears when its request leaves the queue", async () => {
  const engine = handEngine();
  const queue = createSampleQueue(engine, slow);
  const [first, second] = [queue.join([0, 0]), queue.join([1, 0])];
  const left: string[] = [];
  const one = first.sample(request(0), 0, never, { onStart: () => left.push("first") });
  await soon();
  expect(left).toEqual([]);
  const two = second.sample(request(1), 0, never, { onStart: () => left.push("second") });
  await soon();
  expect(left).toEqual(["first", "second"]);
  for (const index of [0, 1]) engine.calls[0]!.answer(index);
  await Promise.all([one, two]);
});

test("calls made side by side by one rollout go together, by turn", async () => {
  const engine = handEngine();
  const rollout = createSampleQueue(engine, slow).join([0, 0]);
  const both = [rollout.sample(request(1), 1, never), rollout.sample(request(0), 0, never)];
  await soon();
  expect(engine.calls.map((call) => call.prompts)).toEqual([[0, 1]]);
  engine.calls[0]!.answer(0);
  engine.calls[0]!.answer(1);
  await Promise.all(both);
});

test("the others wait for a busy rollout only until the limit", async () => {
  const engine = handEngine();
  const queue = createSampleQueue(engine, 5);
  const [first] = [queue.join([0, 0]), queue.join([1, 0])];
  const start = performance.now();
  const sample = first.sample(request(0), 0, never);
  while (engine.calls.length === 0) await setImmediate();
  expect(performance.now() - start).toBeGreaterThanOrEqual(4);
  engine.calls[0]!.answer(0);
  await sample;
});

test("an abort ends its call at once, and the engine's call when nobody waits for it", async () => {
  const engine = handEngine();
  const queue = createSampleQueue(engine, slow);
  const aborts = [new AbortController(), new AbortController(), new AbortController()];
  const [a, b, c] = [queue.join([0, 0]), queue.join([1, 0]), queue.join([2, 0])];
  const unsent = a.sample(request(0), 0, aborts[0]!.signal);
  aborts[0]!.abort(new Error("first"));
  await expect(unsent).rejects.toThrow("first");
  await expect(a.sample(request(0), 0, aborts[0]!.signal)).rejects.toThrow("first");
  a.leave();

  const sent = [b.sample(request(1), 0, aborts[1]!.signal), c.sample(request(2), 0, aborts[2]!.signal)];
  await soon();
  const call = engine.calls[0]!;
  expect(call.prompts).toEqual([1, 2]);
  aborts[1]!.abort(new Error("second"));
  await expect(sent[0]).rejects.toThrow("second");
  expect(call.signal.aborted).toBe(false);
  aborts[2]!.abort(new Error("third"));
  await expect(sent[1]).rejects.toThrow("third");
  expect(call.signal.aborted).toBe(true);
  call.answer(0, "aborted");
  call.end();
});

test("requests that the engine leaves unanswered fail, answered ones succeed", async () => {
  const engine = handEngine();
  const queue = createSampleQueue(engine, slow);
  const calls = [0, 1, 2].map((index) => queue.join([index, 0]).sample(request(index), 0, never));
  const settled = Promise.allSettled(calls);
  await soon();
  engine.calls[0]!.answer(0);
  engine.calls[0]!.answer(1, "aborted");
  engine.calls[0]!.end(new Error("out of memory"));
  expect(await settled).toMatchObject([
    { value: { request: 0 } },
    { reason: { message: "the engine aborted the sample" } },
    { reason: { message: "out of memory" } },
  ]);

  const silent = queue.join([9, 0]).sample(request(9), 0, never);
  // The three above are live and idle; only the end of their rollouts, or the limit, would send this one.
  await soon();
  expect(engine.calls.length).toBe(1);
  silent.catch(() => {});
});
