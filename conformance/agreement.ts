/** Checks that a sampler and its learner have the same log-probabilities and the same weights. */
import assert from "node:assert/strict";
import type { Policy, Sample, SampleRequest } from "../src/backends/engine.ts";
import { everywhere } from "./targets.ts";
import {
  assertClose,
  type ConformanceCheck,
  groups,
  madeUpSequences,
  madeUpTokens,
  madeUpWeights,
  numTrained,
  params,
  sampleAll,
  step,
  trainedAfter,
  withTrainedPolicy,
} from "./tools.ts";

const forwardOf = ({ learner }: Policy, requests: readonly SampleRequest[], samples: readonly Sample[]) =>
  learner.forward(
    samples.map((sample) => trainedAfter(requests[sample.request]!.prompt, sample.tokens)),
    {},
  );

export const agreementChecks: ConformanceCheck[] = [
  {
    name: "the sampler's log-probabilities are those of forward",
    needs: ({ sampleLogprobs }) => sampleLogprobs === "raw",
    check: (engine, { tolerance }) =>
      withTrainedPolicy(engine, async (policy) => {
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
      withTrainedPolicy(engine, async (policy) => {
        const requests = groups(engine, { promptLogprobs: true });
        const prompts = requests.map(({ prompt }) => trainedAfter(prompt.subarray(0, 1), prompt.subarray(1)));
        const { logprobs, offsets } = await policy.learner.forward(prompts, {});
        for (const { request, promptLogprobs } of await sampleAll(policy, requests)) {
          assert.ok(promptLogprobs && Number.isNaN(promptLogprobs[0]), "the first token has no log-probability");
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
    name: "samples continue while the policy trains, from the version they began with",
    needs: ({ frozenSampler }) => frozenSampler.lora,
    check: (engine, { tolerance }) =>
      withTrainedPolicy(engine, async (policy) => {
        const requests = groups(engine);
        const alone = await sampleAll(policy, requests);
        const during = sampleAll(policy, requests);
        const sequences = madeUpSequences(engine);
        await step(policy.learner, sequences, madeUpWeights(numTrained(sequences), 9));
        for (const sample of await during) {
          assert.deepEqual(sample.tokens, alone[sample.request]!.tokens);
          assertClose(sample.logprobs, alone[sample.request]!.logprobs, tolerance, `request ${sample.request}`);
          assert.equal(sample.policyVersion, policy.sampler.version);
        }
      }),
  },
  {
    name: "tempered log-probabilities are those of the tempered distribution",
    needs: ({ outputs, sampling }) => outputs.includes("most_likely") && sampling.includes("tempered_logprobs"),
    check: (engine, { tolerance }) =>
      withTrainedPolicy(engine, async (policy) => {
        const prompt = madeUpTokens(engine, 7, 5);
        const next = everywhere(Int32Array.of(...prompt, 0));
        next.trained.fill(0, 0, prompt.length - 1);
        const all = await policy.learner.mostLikely!([next], engine.model.vocabularySize);
        const temperatures = [0.5, 1, 2, 0];
        const samples = await sampleAll(
          policy,
          temperatures.map((temperature) => ({
            prompt,
            params: params({ temperature, maxTokens: 1, topK: 3 }),
            temperedLogprobs: true,
            topLogprobs: 2,
          })),
        );
        temperatures.forEach((temperature, index) => {
          const divisor = temperature === 0 ? 1 : temperature;
          const total = Math.log(all.logprobs.reduce((sum, log) => sum + Math.exp(log / divisor), 0));
          const of = (token: number) => all.logprobs[all.tokens.indexOf(token)]! / divisor - total;
          const { tokens, logprobs, topLogprobs } = samples[index]!;
          assertClose(logprobs, [of(tokens[0]!)], tolerance, `at temperature ${temperature}`);
          const top = topLogprobs![0]!;
          assertClose(top.logprobs, Array.from(top.tokens, of), tolerance, `the likeliest at ${temperature}`);
        });
      }),
  },
];
