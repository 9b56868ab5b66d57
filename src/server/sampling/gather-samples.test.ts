import { describe, expect, it } from "vitest";
import type { Sample, SampleRequest, Sampler } from "../../backends/engine.ts";
import { plainParams } from "../../backends/sampling-params.ts";
import { createSampleGatherer } from "./gather-samples.ts";

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
