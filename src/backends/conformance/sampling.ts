/** What sampling promises: log-probabilities that the trainer agrees with, seeds, stops, aborts. */
import assert from "node:assert/strict";
import type { Engine, Policy, Sample, SampleRequest } from "../engine.ts";
import {
  assertClose,
  type ConformanceCheck,
  lora,
  madeUpSequences,
  madeUpTokens,
  madeUpWeights,
  numTrained,
  params,
  sampleAll,
  step,
  trainedAfter,
  withPolicy,
} from "./tools.ts";

/** Three prompts, four samples each, of different lengths, so that rows leave the batch one after another. */
function groups(engine: Engine, more: Partial<SampleRequest> = {}): SampleRequest[] {
  return [5, 1, 17].flatMap((length, group) =>
    [3, 8, 14, 30].map((maxTokens, index) => ({
      prompt: madeUpTokens(engine, 50 + group, length),
      params: params({ maxTokens, seed: group * 10 + index }),
      ...more,
    })),
  );
}

/** A policy whose adapter does something, with its weights published. */
async function trained<T>(engine: Engine, use: (policy: Policy) => Promise<T>): Promise<T> {
  return withPolicy(engine, lora(), async (policy) => {
    const sequences = madeUpSequences(engine);
    for (const seed of [1, 2]) await step(policy, sequences, madeUpWeights(numTrained(sequences), seed));
    await policy.sampler.load(await policy.learner.publish());
    return use(policy);
  });
}

const forwardOf = (policy: Policy, requests: readonly SampleRequest[], samples: readonly Sample[]) =>
  policy.learner.forward(
    samples.map((sample) => trainedAfter(requests[sample.request]!.prompt, sample.tokens)),
    {},
  );

export const samplingChecks: ConformanceCheck[] = [
  {
    name: "the sampler's log-probabilities are those of forward",
    needs: ({ sampleLogprobs }) => sampleLogprobs === "raw",
    check: (engine, { tolerance }) =>
      trained(engine, async (policy) => {
        const requests = groups(engine).map((request, index) => ({
          ...request,
          params: { ...request.params, temperature: [1, 0.7, 1.3][index % 3]! },
        }));
        const samples = await sampleAll(policy, requests);
        const { logprobs, offsets } = await forwardOf(policy, requests, samples);
        for (const sample of samples) {
          const own = logprobs.subarray(offsets[sample.request]!, offsets[sample.request + 1]!);
          assertClose(sample.logprobs, own, tolerance, `request ${sample.request}`);
        }
        assert.ok(new Set(samples.map(({ tokens }) => tokens.length)).size > 2, "samples of several lengths");
      }),
  },
  {
    name: "log-probabilities of the prompt are those of forward",
    needs: ({ sampling }) => sampling.includes("prompt_logprobs"),
    check: (engine, { tolerance }) =>
      trained(engine, async (policy) => {
        const requests = groups(engine, { promptLogprobs: true });
        const prompts = requests.map(({ prompt }) => trainedAfter(prompt.subarray(0, 1), prompt.subarray(1)));
        const { logprobs, offsets } = await policy.learner.forward(prompts, {});
        for (const { request, promptLogprobs } of await sampleAll(policy, requests)) {
          assert.ok(promptLogprobs && Number.isNaN(promptLogprobs[0]), "the first token has none");
          assertClose(
            promptLogprobs.subarray(1),
            logprobs.subarray(offsets[request]!, offsets[request + 1]!),
            tolerance,
            `request ${request}`,
          );
        }
      }),
  },
  {
    name: "the likeliest tokens are sorted, and hold the greedy choice",
    needs: ({ sampling }) => sampling.includes("top_logprobs"),
    check: (engine, { tolerance }) =>
      trained(engine, async (policy) => {
        const prompt = madeUpTokens(engine, 3, 6);
        const [greedy] = await sampleAll(policy, [{ prompt, params: params({ temperature: 0 }), topLogprobs: 4 }]);
        assert.equal(greedy!.topLogprobs?.length, greedy!.tokens.length);
        greedy!.topLogprobs!.forEach(({ tokens, logprobs }, index) => {
          assert.equal(tokens.length, 4);
          assert.deepEqual(
            [...logprobs].sort((a, b) => b - a),
            [...logprobs],
            "most likely first",
          );
          assert.ok(logprobs[0]! - greedy!.logprobs[index]! <= tolerance, "greedy takes the likeliest");
        });
      }),
  },
  {
    name: "a seed gives the same sample alone, in a batch, and again",
    needs: ({ sampling }) => sampling.includes("seed"),
    check: (engine, { tolerance }) =>
      trained(engine, async (policy) => {
        const requests = groups(engine);
        const together = await sampleAll(policy, requests);
        for (const index of [0, 3, 6, 11]) {
          const [alone] = await sampleAll(policy, [requests[index]!]);
          assert.deepEqual(alone!.tokens, together[index]!.tokens, `request ${index}`);
          assertClose(alone!.logprobs, together[index]!.logprobs, tolerance, `request ${index}`);
        }
        const other = { ...requests[11]!, params: { ...requests[11]!.params, seed: 999 } };
        const [different] = await sampleAll(policy, [other]);
        assert.notDeepEqual(different!.tokens, together[11]!.tokens, "another seed gives another sample");
      }),
  },
  {
    name: "top_k of one, a tiny top_p and a min_p of one are greedy",
    needs: ({ sampling }) => (["top_k", "top_p", "min_p"] as const).every((name) => sampling.includes(name)),
    check: (engine) =>
      trained(engine, async (policy) => {
        const prompt = madeUpTokens(engine, 4, 5);
        const variants = [{ temperature: 0 }, { topK: 1 }, { topP: 1e-6 }, { minP: 1 }];
        const [greedy, ...others] = await sampleAll(
          policy,
          variants.map((more) => ({ prompt, params: params(more) })),
        );
        for (const { tokens } of others) assert.deepEqual(tokens, greedy!.tokens);
      }),
  },
  {
    name: "a stop id ends a sequence and is its last token; an end token ends it unless ignored",
    needs: ({ sampling }) => sampling.includes("stop_ids"),
    check: (engine) =>
      trained(engine, async (policy) => {
        const prompt = madeUpTokens(engine, 8, 4);
        const free = { maxTokens: 24, ignoreEos: true };
        const [whole] = await sampleAll(policy, [{ prompt, params: params(free) }]);
        assert.deepEqual([whole!.tokens.length, whole!.stopReason], [24, "length"]);
        const stop = whole!.tokens[5]!;
        const first = whole!.tokens.indexOf(stop);
        const [stopped] = await sampleAll(policy, [{ prompt, params: params({ ...free, stopIds: [stop] }) }]);
        assert.deepEqual(
          [[...stopped!.tokens], stopped!.stopReason],
          [[...whole!.tokens.subarray(0, first + 1)], "stop"],
        );
        const many = Array.from({ length: 16 }, (_, seed) => ({ prompt, params: params({ maxTokens: 60, seed }) }));
        for (const { tokens, stopReason } of await sampleAll(policy, many)) {
          const end = tokens.findIndex((token) => engine.model.eosTokenIds.includes(token));
          assert.equal(end, stopReason === "stop" ? tokens.length - 1 : -1, "an end token is the last one or none");
        }
      }),
  },
  {
    name: "an aborted call gives what it has, and the engine goes on",
    needs: ({ sampling }) => sampling.includes("abort"),
    check: (engine) =>
      trained(engine, async (policy) => {
        const long = groups(engine).map((request) => ({
          ...request,
          params: params({ maxTokens: 2000, ignoreEos: true, seed: 5 }),
        }));
        const abort = new AbortController();
        const timer = setTimeout(() => abort.abort(), 100);
        const samples: Sample[] = [];
        for await (const sample of policy.sampler.sample(long, { signal: abort.signal })) samples.push(sample);
        clearTimeout(timer);
        assert.equal(samples.length, long.length);
        assert.ok(
          samples.some(({ stopReason }) => stopReason === "aborted"),
          "sequences were aborted",
        );
        for (const { tokens, logprobs } of samples) assert.equal(tokens.length, logprobs.length);

        const before: Sample[] = [];
        for await (const sample of policy.sampler.sample(long, { signal: AbortSignal.abort() })) before.push(sample);
        assert.equal(before.length, long.length);
        assert.ok(
          before.every(({ stopReason }) => stopReason === "aborted"),
          "a signal that was given before the call",
        );
        for await (const _first of policy.sampler.sample(groups(engine))) break; // Leaving early must not block what follows.
        assert.equal((await sampleAll(policy, groups(engine))).length, long.length);
      }),
  },
  {
    name: "a request can be aborted alone",
    needs: ({ sampling }) => sampling.includes("abort") && sampling.includes("tokens_streamed"),
    check: (engine) =>
      trained(engine, async (policy) => {
        const abort = new AbortController();
        const endless = { prompt: madeUpTokens(engine, 2, 5), params: params({ maxTokens: 2000, ignoreEos: true }) };
        const short = { ...endless, params: params({ maxTokens: 20, ignoreEos: true }) };
        const requests = [
          short,
          { ...endless, signal: abort.signal },
          short,
          { ...endless, signal: AbortSignal.abort() },
        ];
        const samples: Sample[] = [];
        let told = 0;
        const onToken = (request: number) => {
          if (request === 1 && ++told === 3) abort.abort();
        };
        for await (const sample of policy.sampler.sample(requests, { onToken })) samples[sample.request] = sample;
        assert.deepEqual(
          samples.map(({ stopReason }) => stopReason),
          ["length", "aborted", "length", "aborted"],
        );
        assert.ok(samples[1]!.tokens.length >= 3 && samples[0]!.tokens.length === 20);
      }),
  },
  {
    name: "tokens are told as they are sampled",
    needs: ({ sampling }) => sampling.includes("tokens_streamed"),
    check: (engine) =>
      trained(engine, async (policy) => {
        const requests = groups(engine);
        const told = requests.map(() => ({ tokens: [] as number[], logprobs: [] as number[] }));
        const onToken = (request: number, token: number, logprob: number) => {
          told[request]!.tokens.push(token);
          told[request]!.logprobs.push(logprob);
        };
        for await (const sample of policy.sampler.sample(requests, { onToken })) {
          const { tokens, logprobs } = told[sample.request]!;
          assert.deepEqual([tokens, logprobs], [[...sample.tokens], [...sample.logprobs]]);
        }
      }),
  },
  {
    name: "samples go on while the policy trains, from the version they began with",
    needs: ({ frozenSampler }) => frozenSampler.lora,
    check: (engine, { tolerance }) =>
      trained(engine, async (policy) => {
        const requests = groups(engine);
        const alone = await sampleAll(policy, requests);
        const during = sampleAll(policy, requests);
        const sequences = madeUpSequences(engine);
        await step(policy, sequences, madeUpWeights(numTrained(sequences), 9));
        for (const sample of await during) {
          assert.deepEqual(sample.tokens, alone[sample.request]!.tokens);
          assertClose(sample.logprobs, alone[sample.request]!.logprobs, tolerance, `request ${sample.request}`);
          assert.equal(sample.policyVersion, policy.sampler.version);
        }
      }),
  },
];
