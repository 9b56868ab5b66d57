/** Checks of every sampler: seeds, filters, stops, aborts, streams. */
import assert from "node:assert/strict";
import type { Sample } from "../src/backends/engine.ts";
import { assertClose, groups, madeUpTokens, params, type SamplerCheck, sampleAll, sampleOne } from "./tools.ts";

export const samplerChecks: SamplerCheck[] = [
  {
    name: "the likeliest tokens are sorted, and include the greedy choice",
    needs: ({ sampling }) => sampling.includes("top_logprobs"),
    check: async ({ sampler, model }, { tolerance }) => {
      const prompt = madeUpTokens({ model }, 3, 6);
      const greedy = await sampleOne({ sampler }, { prompt, params: params({ temperature: 0 }), topLogprobs: 4 });
      assert.equal(greedy.topLogprobs?.length, greedy.tokens.length);
      greedy.topLogprobs!.forEach(({ tokens, logprobs }, index) => {
        assert.equal(tokens.length, 4);
        assert.ok(tokens.includes(greedy.tokens[index]!), "the greedy choice is one of them");
        assert.deepEqual(
          [...logprobs].sort((a, b) => b - a),
          [...logprobs],
          "most likely first",
        );
        assert.ok(logprobs[0]! - greedy.logprobs[index]! <= tolerance, "greedy takes the likeliest");
      });
    },
  },
  {
    name: "a seed gives the same sample alone, in a batch, and again",
    needs: ({ sampling }) => sampling.includes("seed"),
    check: async ({ sampler, model }, { tolerance }) => {
      const requests = groups({ model });
      const together = await sampleAll({ sampler }, requests);
      for (const index of [0, 3, 6, 11]) {
        const alone = await sampleOne({ sampler }, requests[index]!);
        assert.deepEqual(alone.tokens, together[index]!.tokens, `request ${index}`);
        assertClose(alone.logprobs, together[index]!.logprobs, tolerance, `request ${index}`);
      }
      const other = { ...requests[11]!, params: { ...requests[11]!.params, seed: 999 } };
      const different = await sampleOne({ sampler }, other);
      assert.notDeepEqual(different.tokens, together[11]!.tokens, "another seed gives another sample");
    },
  },
  {
    name: "top_k of one, a tiny top_p and a min_p of one are greedy",
    needs: ({ sampling }) => (["top_k", "top_p", "min_p"] as const).every((name) => sampling.includes(name)),
    check: async ({ sampler, model }) => {
      const prompt = madeUpTokens({ model }, 4, 5);
      const variants = [{ temperature: 0 }, { topK: 1 }, { topP: 1e-6 }, { minP: 1 }];
      const [greedy, ...others] = await sampleAll(
        { sampler },
        variants.map((more) => ({ prompt, params: params(more) })),
      );
      for (const { tokens } of others) assert.deepEqual(tokens, greedy!.tokens);
    },
  },
  {
    name: "a stop id ends a sequence and is its last token; an end token ends it unless ignored",
    needs: ({ sampling }) => sampling.includes("stop_ids"),
    check: async ({ sampler, model }) => {
      const prompt = madeUpTokens({ model }, 8, 4);
      const free = { maxTokens: 24, ignoreEos: true };
      const whole = await sampleOne({ sampler }, { prompt, params: params(free) });
      assert.deepEqual([whole.tokens.length, whole.stopReason], [24, "length"]);
      const stop = whole.tokens[5]!;
      const first = whole.tokens.indexOf(stop);
      const stopped = await sampleOne({ sampler }, { prompt, params: params({ ...free, stopIds: [stop] }) });
      assert.deepEqual([[...stopped.tokens], stopped.stopReason], [[...whole.tokens.subarray(0, first + 1)], "stop"]);
      const many = Array.from({ length: 16 }, (_, seed) => ({ prompt, params: params({ maxTokens: 60, seed }) }));
      for (const { tokens, stopReason } of await sampleAll({ sampler }, many)) {
        const end = tokens.findIndex((token) => model.eosTokenIds.includes(token));
        assert.equal(end, stopReason === "stop" ? tokens.length - 1 : -1, "an end token is the last one or none");
      }
    },
  },
  {
    name: "an aborted call returns what it has, and the engine continues",
    needs: ({ sampling }) => sampling.includes("abort"),
    check: async ({ sampler, model }) => {
      const long = groups({ model }).map((request) => ({
        ...request,
        params: params({ maxTokens: 2000, ignoreEos: true, seed: 5 }),
      }));
      const abort = new AbortController();
      const timer = setTimeout(() => abort.abort(), 100);
      const samples: Sample[] = [];
      for await (const sample of sampler.sample(long, { signal: abort.signal })) samples.push(sample);
      clearTimeout(timer);
      assert.equal(samples.length, long.length);
      assert.ok(
        samples.some(({ stopReason }) => stopReason === "aborted"),
        "sequences were aborted",
      );
      for (const { tokens, logprobs } of samples) assert.equal(tokens.length, logprobs.length);

      const before: Sample[] = [];
      for await (const sample of sampler.sample(long, { signal: AbortSignal.abort() })) before.push(sample);
      assert.equal(before.length, long.length);
      assert.ok(
        before.every(({ stopReason }) => stopReason === "aborted"),
        "a signal that was aborted before the call",
      );
      for await (const _first of sampler.sample(groups({ model }))) break; // Leaving early must not block what follows.
      assert.equal((await sampleAll({ sampler }, groups({ model }))).length, long.length);
    },
  },
  {
    name: "a request can be aborted alone",
    needs: ({ sampling }) => sampling.includes("abort") && sampling.includes("tokens_streamed"),
    check: async ({ sampler, model }) => {
      const abort = new AbortController();
      const endless = { prompt: madeUpTokens({ model }, 2, 5), params: params({ maxTokens: 2000, ignoreEos: true }) };
      const short = { ...endless, params: params({ maxTokens: 20, ignoreEos: true }) };
      const requests = [
        short,
        { ...endless, signal: abort.signal },
        short,
        { ...endless, signal: AbortSignal.abort() },
      ];
      const samples: Sample[] = [];
      let streamed = 0;
      const onToken = (request: number) => {
        if (request === 1 && ++streamed === 3) abort.abort();
      };
      for await (const sample of sampler.sample(requests, { onToken })) samples[sample.request] = sample;
      assert.deepEqual(
        samples.map(({ stopReason }) => stopReason),
        ["length", "aborted", "length", "aborted"],
      );
      assert.ok(samples[1]!.tokens.length >= 3 && samples[0]!.tokens.length === 20);
    },
  },
  {
    name: "tokens are reported as they are sampled",
    needs: ({ sampling }) => sampling.includes("tokens_streamed"),
    check: async ({ sampler, model }) => {
      const requests = groups({ model });
      const streamed = requests.map(() => ({ tokens: [] as number[], logprobs: [] as number[] }));
      const onToken = (request: number, token: number, logprob: number) => {
        streamed[request]!.tokens.push(token);
        streamed[request]!.logprobs.push(logprob);
      };
      for await (const sample of sampler.sample(requests, { onToken })) {
        const { tokens, logprobs } = streamed[sample.request]!;
        assert.deepEqual([tokens, logprobs], [[...sample.tokens], [...sample.logprobs]]);
      }
    },
  },
  {
    name: "samples are marked exactly if their log-probabilities belong to a distribution other than the model's",
    check: async ({ sampler, model }) => {
      const prompt = madeUpTokens({ model }, 9, 4);
      for (const [changed, changes] of [
        [{}, false],
        [{ temperature: 0.5 }, true],
      ] as const) {
        const sample = await sampleOne({ sampler }, { prompt, params: params(changed) });
        assert.equal(sample.processed ?? false, changes && sampler.logprobs === "processed");
      }
    },
  },
];
