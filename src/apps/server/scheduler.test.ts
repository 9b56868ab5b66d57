import { describe, expect, it, test } from "vitest";
import type { Sample, SampleRequest, Sampler } from "../../backends/engine.ts";
import { plainParams } from "../../backends/engine-parts.ts";
import { createSampleGatherer, createScheduler } from "./scheduler.ts";

const limits = { maxRows: 4, maxWaitingRows: 8 };
/** A job that ends when the test releases it. */
function held() {
  let end = (): void => {};
  const ended = new Promise<void>((resolve) => {
    end = resolve;
  });
  return { end, job: () => ended };
}
const turn = () => new Promise(setImmediate);

test("training jobs run one at a time, models in turns", async () => {
  const scheduler = createScheduler(limits);
  const order: string[] = [];
  let running = 0;
  const job = (name: string) => async () => {
    expect(++running).toBe(1);
    order.push(name);
    await turn();
    running--;
  };
  await Promise.all([
    ...["a1", "a2", "a3"].map((name) => scheduler.train("a", job(name))),
    ...["b1", "b2"].map((name) => scheduler.train("b", job(name))),
    scheduler.train("c", job("c1")),
  ]);
  expect(order).toEqual(["a1", "a2", "b1", "c1", "a3", "b2"]);
});

test("a failed job rejects for its owner and delays nobody", async () => {
  const scheduler = createScheduler(limits);
  const failed = scheduler.train("a", async () => {
    throw new Error("no");
  });
  const next = scheduler.train("a", async () => "yes");
  await expect(failed).rejects.toThrow("no");
  expect(await next).toBe("yes");
});

test("samples share the engine up to its rows, clients in turns", async () => {
  const scheduler = createScheduler(limits);
  const started: string[] = [];
  const jobs = new Map<string, ReturnType<typeof held>>();
  const sample = (owner: string, name: string, rows: number) => {
    const one = held();
    jobs.set(name, one);
    void scheduler.sample(owner, rows, () => {
      started.push(name);
      return one.job();
    });
  };
  sample("a", "a1", 3);
  sample("a", "a2", 2);
  sample("a", "a3", 2);
  sample("b", "b1", 2);
  expect(started).toEqual(["a1"]);
  expect(scheduler.state).toMatchObject({ rows: 3, rowsWaiting: 6 });
  jobs.get("a1")!.end();
  await turn();
  expect(started).toEqual(["a1", "a2", "b1"]);
  for (const name of ["a2", "b1", "a3"]) jobs.get(name)!.end();
  await turn();
  expect(scheduler.state).toMatchObject({ rows: 0, rowsWaiting: 0 });
});

test("a request with more sequences than places runs alone", async () => {
  const scheduler = createScheduler(limits);
  const [big, small] = [held(), held()];
  const started: string[] = [];
  const start = (name: string, job: () => Promise<void>) => () => {
    started.push(name);
    return job();
  };
  void scheduler.sample("a", 9, start("big", big.job));
  void scheduler.sample("b", 1, start("small", small.job));
  expect(started).toEqual(["big"]);
  big.end();
  await turn();
  expect(started).toEqual(["big", "small"]);
});

test("training pauses for samples in progress and continues when they have ended", async () => {
  let clock = 0;
  const scheduler = createScheduler({ ...limits, now: () => clock });
  const sampling = held();
  void scheduler.sample("a", 1, sampling.job);
  const order: string[] = [];
  const first = scheduler.train("a", async () => {
    clock += 60_000;
    order.push("first");
  });
  const second = scheduler.train("a", async () => void order.push("second"));
  await first;
  await turn();
  expect(order).toEqual(["first"]);
  sampling.end();
  await second;
  expect(order).toEqual(["first", "second"]);
});

test("free places are acquired until none is left, and each is released once", () => {
  const scheduler = createScheduler(limits);
  const leave = scheduler.enter(10)!;
  expect([scheduler.enter(3), scheduler.enter(2)]).toEqual([null, expect.any(Function)]);
  leave();
  leave();
  expect(scheduler.enter(10)).not.toBeNull();
  expect(scheduler.enter(1)).toBeNull();
});

const requestsOf = (...seeds: number[]): SampleRequest[] =>
  seeds.map((seed) => ({ prompt: Int32Array.of(1), params: { ...plainParams, seed } }));

/** Answers with each request's seed, the last request first; notes the seeds of each call. */
function samplerOf(fails: (seeds: readonly number[]) => boolean = () => false) {
  const calls: number[][] = [];
  const sampler = {
    async *sample(requests: readonly SampleRequest[]): AsyncGenerator<Sample> {
      const seeds = requests.map((request) => request.params.seed);
      calls.push(seeds);
      if (fails(seeds)) throw new Error("not this one");
      for (const [place, seed] of [...seeds.entries()].reverse()) {
        const logprobs = Float32Array.of(0);
        yield { request: place, tokens: Int32Array.of(seed), logprobs, stopReason: "length", policyVersion: 0 };
      }
    },
  } as unknown as Sampler;
  return { sampler, calls };
}
const tokens = (samples: readonly Sample[]) => samples.map((sample) => sample.tokens[0]);
const { signal } = new AbortController();

describe("requests of one turn of the event loop", () => {
  it("are one engine call for each client and policy, and each gets its own samples", async () => {
    const gatherer = createSampleGatherer();
    const [one, two] = [samplerOf(), samplerOf()];
    const found = await Promise.all([
      gatherer.sample(one.sampler, "a", requestsOf(1, 2), signal),
      gatherer.sample(one.sampler, "b", requestsOf(3), signal),
      gatherer.sample(one.sampler, "a", requestsOf(4), signal),
      gatherer.sample(two.sampler, "a", requestsOf(5), signal),
    ]);
    expect(found.map(tokens)).toEqual([[1, 2], [3], [4], [5]]);
    expect([one.calls, two.calls]).toEqual([[[1, 2, 4], [3]], [[5]]]);
    expect(tokens(await gatherer.sample(one.sampler, "a", requestsOf(6), signal))).toEqual([6]);
  });

  it("fail together, without failing another client's", async () => {
    const gatherer = createSampleGatherer();
    const { sampler } = samplerOf((seeds) => seeds.includes(2));
    const asked = [
      gatherer.sample(sampler, "a", requestsOf(1), signal),
      gatherer.sample(sampler, "a", requestsOf(2), signal),
      gatherer.sample(sampler, "b", requestsOf(3), signal),
    ];
    const ended = await Promise.allSettled(asked);
    expect(ended.map(({ status }) => status)).toEqual(["rejected", "rejected", "fulfilled"]);
  });
});
