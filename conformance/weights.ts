/** Checks of a policy's weights: separate from other policies, published on request, saved and restored completely. */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { join } from "node:path";
import type { AdapterSpec, Engine, Policy } from "../src/backends/engine.ts";
import {
  assertClose,
  assertDiffer,
  type ConformanceCheck,
  lora,
  madeUpSequences,
  madeUpTokens,
  madeUpWeights,
  numTrained,
  params,
  sampleOne,
  step,
  withPolicy,
} from "./tools.ts";

async function trainABit(engine: Engine, policy: Policy, ...seeds: number[]): Promise<void> {
  const sequences = madeUpSequences(engine);
  for (const seed of seeds) await step(policy.learner, sequences, madeUpWeights(numTrained(sequences), seed));
}

const outputs = async (engine: Engine, policy: Policy): Promise<Float32Array> =>
  (await policy.learner.forward(madeUpSequences(engine), {})).logprobs;

/** What `sample` returns for a fixed prompt: a fingerprint of the published weights. */
async function sampled(engine: Engine, policy: Policy) {
  const request = {
    prompt: madeUpTokens(engine, 77, 9),
    params: params({ maxTokens: 6, temperature: 0, ignoreEos: true }),
  };
  const sample = await sampleOne(policy, request);
  return { fingerprint: sample.logprobs, version: sample.policyVersion };
}

/** After training without publishing, `sample` still answers from the published weights; after publishing, not. */
async function publishes(engine: Engine, adapter: AdapterSpec, tolerance: number): Promise<void> {
  await withPolicy(engine, adapter, async (policy) => {
    assert.equal(policy.sampler.version, 0);
    const first = await sampled(engine, policy);
    await trainABit(engine, policy, 1, 2);
    if (engine.capabilities.frozenSampler[adapter.kind as "lora" | "full"]) {
      const second = await sampled(engine, policy);
      assert.deepEqual([second.version, second.fingerprint], [0, first.fingerprint], "samples before publishing");
    }
    const published = await policy.learner.publish();
    assert.deepEqual([published.version, policy.sampler.version], [1, 0]);
    await policy.sampler.load(published);
    const third = await sampled(engine, policy);
    assert.deepEqual([policy.sampler.version, third.version], [1, 1]);
    assertDiffer(third.fingerprint, first.fingerprint, tolerance * 10, "samples after publishing");
  });
}

async function exports(engine: Engine, dir: string, as: "adapter" | "merged", files: readonly string[]): Promise<void> {
  await withPolicy(engine, lora(), async (policy) => {
    await trainABit(engine, policy, 1);
    await policy.learner.export(dir, as);
    for (const file of files) assert.ok(existsSync(join(dir, file)), `the export contains ${file}`);
    await assert.rejects(policy.learner.export(dir, as), "an export replaces nothing");
  });
}

export const weightChecks: ConformanceCheck[] = [
  {
    name: "a fresh adapter is the base model",
    needs: ({ adapters }) => adapters.includes("lora") && adapters.includes("none"),
    check: (engine, { tolerance }) =>
      withPolicy(engine, { kind: "none" }, (base) =>
        withPolicy(engine, lora(), async (policy) => {
          assertClose(await outputs(engine, policy), await outputs(engine, base), tolerance, "forward");
          const [fresh, plain] = [await sampled(engine, policy), await sampled(engine, base)];
          assertClose(fresh.fingerprint, plain.fingerprint, tolerance, "sample");
        }),
      ),
  },
  {
    name: "two policies do not touch each other",
    needs: ({ multiplePolicies }) => multiplePolicies,
    check: (engine) =>
      withPolicy(engine, lora(1), (a) =>
        withPolicy(engine, lora(2), async (b) => {
          await trainABit(engine, b, 5);
          await b.sampler.load(await b.learner.publish());
          const [outputsBefore, sampledBefore] = [await outputs(engine, b), await sampled(engine, b)];
          await trainABit(engine, a, 1, 2);
          await a.sampler.load(await a.learner.publish());
          assert.deepEqual(await outputs(engine, b), outputsBefore);
          assert.deepEqual(await sampled(engine, b), sampledBefore);
          const sequences = madeUpSequences(engine);
          const weights = madeUpWeights(numTrained(sequences), 6);
          // b has its own optimizer: its step equals that of a policy without others.
          const [together, alone] = await Promise.all([
            step(b.learner, sequences, weights),
            trainedAlone(engine, weights),
          ]);
          assertClose([together.gradNorm], [alone.gradNorm], 1e-4, "the gradient");
          assertClose(await outputs(engine, b), alone.after, 1e-4, "the step");
        }),
      ),
  },
  {
    name: "publish makes an adapter's new weights those of sample",
    needs: ({ adapters }) => adapters.includes("lora"),
    check: (engine, { tolerance }) => publishes(engine, lora(), tolerance),
  },
  {
    name: "all weights train, publish, and leave the base as it was when closed",
    needs: ({ adapters }) => adapters.includes("full"),
    check: async (engine, { tolerance }) => {
      const base = () => withPolicy(engine, lora(), (policy) => outputs(engine, policy));
      const before = await base();
      await publishes(engine, { kind: "full" }, tolerance);
      assert.deepEqual(await base(), before);
    },
  },
  {
    name: "a saved state restores weights and optimizer exactly",
    check: async (engine, { path }) => {
      const dir = path("state");
      const saved = await withPolicy(engine, lora(), async (policy) => {
        await trainABit(engine, policy, 1, 2);
        await policy.sampler.load(await policy.learner.publish());
        await policy.learner.saveState(dir);
        await assert.rejects(policy.learner.saveState(dir), "a state replaces nothing");
        const [at, samples] = [await outputs(engine, policy), await sampled(engine, policy)];
        await trainABit(engine, policy, 3);
        return { at, samples, next: await outputs(engine, policy) };
      });
      await withPolicy(engine, lora(7), async (policy) => {
        await trainABit(engine, policy, 9);
        await policy.sampler.load(await policy.learner.loadState(dir, { optimizer: true }));
        assert.deepEqual(await outputs(engine, policy), saved.at);
        assert.deepEqual(
          [policy.sampler.version, await sampled(engine, policy)],
          [1, saved.samples],
          "what is loaded is published",
        );
        await trainABit(engine, policy, 3);
        assert.deepEqual(await outputs(engine, policy), saved.next, "the next step, bit for bit");
      });
      await withPolicy(engine, lora(7), async (policy) => {
        await policy.sampler.load(await policy.learner.loadState(dir, { optimizer: false }));
        assert.deepEqual(await outputs(engine, policy), saved.at);
        await trainABit(engine, policy, 3);
        assert.notDeepEqual(await outputs(engine, policy), saved.next, "without the optimizer the next step differs");
      });
    },
  },
  {
    name: "a missing state is refused",
    check: (engine, { path }) =>
      withPolicy(engine, lora(), async (policy) => {
        const before = await outputs(engine, policy);
        await assert.rejects(policy.learner.loadState(path("nothing"), { optimizer: true }));
        assert.deepEqual(await outputs(engine, policy), before);
      }),
  },
  {
    name: "an adapter is exported as PEFT's files",
    needs: ({ exports }) => exports.includes("adapter"),
    check: (engine, { path }) =>
      exports(engine, path("adapter"), "adapter", ["adapter_config.json", "adapter_model.safetensors"]),
  },
  {
    name: "merged weights are exported as a Hugging Face folder",
    needs: ({ exports }) => exports.includes("merged"),
    check: (engine, { path }) =>
      exports(engine, path("merged"), "merged", ["config.json", "model.safetensors", "tokenizer.json"]),
  },
];

/** The second policy of the check above, trained without the first. */
async function trainedAlone(engine: Engine, weights: ReturnType<typeof madeUpWeights>) {
  return withPolicy(engine, lora(2), async (policy) => {
    await trainABit(engine, policy, 5);
    const { gradNorm } = await step(policy.learner, madeUpSequences(engine), weights);
    return { gradNorm, after: await outputs(engine, policy) };
  });
}
