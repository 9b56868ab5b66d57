import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { conformance } from "../../conformance/conformance.ts";
import { singleTurn } from "../agents/workflows.ts";
import type { Loss } from "../algorithms/types.ts";
import type { AdamParams, Policy, Sample, SampleRequest, SamplingParams } from "../backends/engine.ts";
import { plainParams } from "../backends/engine-parts.ts";
import { deriveSeed, uniforms } from "../base/values.ts";
import { runRollouts } from "../rollout/rollouts.ts";
import { createSamplingClient, rolloutSeed } from "../rollout/session.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import type { Sequence } from "../trajectories/types.ts";
import { tabularEngine } from "./tabular-engine.ts";

describe("tabular engine", () => {
  const params: SamplingParams = { ...plainParams, maxTokens: 20 };
  const adam: AdamParams = { learningRate: 0.1, beta1: 0.9, beta2: 0.95, eps: 1e-8, weightDecay: 0, maxGradNorm: 0 };

  /** A base model whose rows differ; token 0 ends a reply. */
  const engine = tabularEngine({
    alphabet: "abc",
    logit: (next, previous) => uniforms(deriveSeed(next, previous))() * 4 - 2,
  });
  const full = () => engine.createPolicy({ adapter: { kind: "full" } });

  /** A loss linear in the outputs, so that its gradient is the weights given here. */
  const linear = (logprobs: number[], entropy: number[] = logprobs.map(() => 0)): Loss => ({
    name: "linear",
    outputs: { entropy: true },
    evaluate: (outputs) => ({
      loss:
        logprobs.reduce((sum, weight, index) => sum + weight * outputs.logprobs[index]!, 0) +
        entropy.reduce((sum, weight, index) => sum + weight * outputs.entropy![index]!, 0),
      gradient: { logprobs: Float32Array.from(logprobs), entropy: Float32Array.from(entropy) },
      metrics: {},
    }),
  });

  async function collect(policy: Policy, requests: SampleRequest[], signal?: AbortSignal): Promise<Sample[]> {
    const samples: Sample[] = [];
    for await (const sample of policy.sampler.sample(requests, signal ? { signal } : {}))
      samples[sample.request] = sample;
    return samples;
  }
  const toSequence = (prompt: Int32Array, tokens: Int32Array): Sequence => ({
    tokens: Int32Array.of(...prompt, ...tokens),
    trained: Uint8Array.from({ length: prompt.length + tokens.length - 1 }, (_, index) =>
      Number(index >= prompt.length - 1),
    ),
  });

  describe("sampling", () => {
    const prompt = engine.chat.render([{ role: "user", content: "ab" }]);

    test("has the log-probabilities of forward, and depends on its seed only", async () => {
      const policy = await full();
      const requests = Array.from({ length: 6 }, (_, seed) => ({ prompt, params: { ...params, seed } }));
      const samples = await collect(policy, requests);
      const alone = await Promise.all(requests.map(async (request) => (await collect(policy, [request]))[0]!));
      expect(samples.map(({ request, ...sample }) => sample)).toEqual(alone.map(({ request, ...sample }) => sample));
      expect(new Set(samples.map(({ tokens }) => tokens.join())).size).toBeGreaterThan(3);

      const outputs = await policy.learner.forward(
        samples.map(({ tokens }) => toSequence(prompt, tokens)),
        {},
      );
      expect(outputs.logprobs).toEqual(Float32Array.of(...samples.flatMap(({ logprobs }) => [...logprobs])));
      expect(outputs.entropy).toBeUndefined();
    });

    test("ends at its limits, returns the requested outputs, streams and aborts", async () => {
      const policy = await full();
      const asks = [
        { prompt, params: { ...params, maxTokens: 3, ignoreEos: true }, promptLogprobs: true, topLogprobs: 2 },
        { prompt, params: { ...params, maxTokens: 500, stopStrings: ["c"] } },
        { prompt, params: { ...params, maxTokens: 500, ignoreEos: true, stopIds: [1] } },
      ];
      const [short, stopString, stopId] = await collect(policy, asks);
      expect(short).toMatchObject({ stopReason: "length", policyVersion: 0 });
      expect(short!.tokens.length).toBe(3);
      expect(short!.promptLogprobs!.length).toBe(prompt.length);
      expect(short!.promptLogprobs![0]).toBeNaN();
      expect(short!.topLogprobs!.map(({ tokens }) => tokens.length)).toEqual([2, 2, 2]);
      expect(engine.chat.decode(stopString!.tokens)).toMatch(/(c|<\|end\|>)$/);
      expect(stopId!.tokens.indexOf(1)).toBe(stopId!.tokens.length - 1);

      const streamed: number[] = [];
      const whole = await policy.sampler
        .sample([asks[0]!], { onToken: (_request, token) => streamed.push(token) })
        [Symbol.asyncIterator]()
        .next();
      expect(streamed).toEqual([...(whole.value as Sample).tokens]);

      const endless = { prompt, params: { ...params, maxTokens: 1e9, ignoreEos: true } };
      const [all, own] = [new AbortController(), new AbortController()];
      const both = collect(policy, [{ ...endless, signal: own.signal }, endless], all.signal);
      own.abort();
      setTimeout(() => all.abort(), 10);
      const [first, second] = await both;
      expect([first!.stopReason, second!.stopReason]).toEqual(["aborted", "aborted"]);
      expect(second!.tokens.length).toBeGreaterThan(first!.tokens.length);
    });

    test("uses the published weights until the next publish", async () => {
      const [policy, other] = [await full(), await full()];
      const request = { prompt, params };
      const [before] = await collect(policy, [request]);
      await policy.learner.forwardBackward(
        [toSequence(prompt, before!.tokens)],
        linear(Array(before!.tokens.length).fill(1)),
      );
      await policy.learner.optimStep({ ...adam, learningRate: 5 });
      expect(await collect(policy, [request])).toEqual([before]);
      await policy.sampler.load(await policy.learner.publish());
      expect(policy.sampler.version).toBe(1);
      const [after] = await collect(policy, [request]);
      expect(after).toMatchObject({ policyVersion: 1 });
      expect(after!.tokens).not.toEqual(before!.tokens);
      expect(await collect(other, [request])).toEqual([before]);
    });
  });

  describe("learning", () => {
    /** -(2 log p(2|1) + log p(3|2)) */
    const batch = [{ tokens: Int32Array.of(1, 2, 3), trained: Uint8Array.of(1, 1) }];
    const loss = linear([-2, -1]);

    test("AdamW with clipping and decay equals PyTorch's", async () => {
      const policy = await tabularEngine({ alphabet: "" }).createPolicy({ adapter: { kind: "full" } });
      const norms: number[] = [];
      for (let step = 0; step < 3; step++) {
        // Two calls accumulate to one gradient.
        await policy.learner.forwardBackward(batch, linear([-2, 0]));
        await policy.learner.forwardBackward(batch, linear([0, -1]));
        norms.push((await policy.learner.optimStep({ ...adam, weightDecay: 0.1, maxGradNorm: 0.5 })).gradNorm);
      }
      const { logprobs } = await policy.learner.forward(batch, {});
      // torch.optim.AdamW 2.15 in float64, lr 0.1, betas (0.9, 0.95), clip_grad_norm_ 0.5.
      for (const [step, norm] of [2, 1.9151941534, 1.8218772526].entries()) expect(norms[step]).toBeCloseTo(norm, 5);
      for (const logprob of logprobs) expect(logprob).toBeCloseTo(-1.1657766, 5);
    });

    test("a gradient that is not finite and a reference are refused", async () => {
      const policy = await full();
      const before = await policy.learner.forward(batch, {});
      await expect(policy.learner.forwardBackward(batch, linear([Number.NaN, 1]))).rejects.toThrow(
        "logprobs[0] is NaN",
      );
      await policy.learner.forwardBackward(batch, loss);
      await policy.learner.zeroGrad();
      expect(await policy.learner.optimStep(adam)).toEqual({ gradNorm: 0, applied: true });
      expect(await policy.learner.forward(batch, {})).toEqual(before);
      const reference = await engine.createPolicy({ adapter: { kind: "none" } });
      expect(await reference.learner.forward(batch, {})).toEqual(before);
      await expect(reference.learner.forwardBackward(batch, loss)).rejects.toThrow("cannot be trained");
    });

    test("GRPO in ten lines: the reward rises in milliseconds", async () => {
      const policy = await full();
      const tasks = [0, 1].map((index) => ({ id: `${index}`, row: index, origin: "here" }));
      const share = (text: string) =>
        text.length === 0 ? 0 : [...text].filter((letter) => letter === "a").length / text.length;
      const means: number[] = [];
      for (let step = 0; step < 20; step++) {
        const client = createSamplingClient({
          ...{
            sampler: policy.sampler,
            chat: engine.chat,
            defaults: params,
            limits: { maxPromptLength: 50, maxResponseLength: 10 },
          },
          seedFor: rolloutSeed(0, step),
        });
        const episodes = await runRollouts({
          ...{
            tasks,
            n: 8,
            client,
            purpose: "train",
            nParallelTasks: 64,
            retryLimit: 0,
            timeoutSeconds: 10,
            raiseOnError: true,
          },
          workflow: singleTurn<number>({ prompt: () => "b", reward: (_row, reply) => share(reply.text) }),
        });
        const trajectories = episodes.flatMap((episode) => episode.trajectories);
        const mean = trajectories.reduce((sum, { reward }) => sum + reward!, 0) / trajectories.length;
        means.push(mean);
        const steps = trajectories.map((trajectory) => trajectory.steps[0]!);
        const weights = trajectories.flatMap(({ reward, steps: [only] }) =>
          Array(only!.tokens.length).fill(mean - reward!),
        );
        await policy.learner.forwardBackward(
          steps.map((each) => toSequence(each.promptTokens, each.tokens)),
          linear(weights),
        );
        await policy.learner.optimStep({ ...adam, learningRate: 0.3 });
        await policy.sampler.load(await policy.learner.publish());
      }
      expect(means.at(-1)! - means[0]!).toBeGreaterThan(0.4);
    });
  });

  describe("state", () => {
    const folder = temporaryFolder("tabular");
    const batch = [{ tokens: Int32Array.of(5, 6, 7), trained: Uint8Array.of(1, 1) }];
    const train = async (policy: Policy) => {
      await policy.learner.forwardBackward(batch, linear([-1, 0.5], [0.1, 0]));
      await policy.learner.optimStep(adam);
      return (await policy.learner.forward(batch, { entropy: true })).logprobs;
    };

    test("is restored exactly, and training continues as without a restart", async () => {
      const policy = await full();
      await train(policy);
      const dir = join(folder, "whole");
      await policy.learner.saveState(dir);
      expect(await readdir(folder)).toEqual(["whole"]);
      const next = await train(policy);
      const resumed = await full();
      await resumed.sampler.load(await resumed.learner.loadState(dir, { optimizer: true }));
      expect(await train(resumed)).toEqual(next);
      const fresh = await full();
      await fresh.sampler.load(await fresh.learner.loadState(dir, { optimizer: false }));
      expect(await train(fresh)).not.toEqual(next);
      await expect(policy.learner.saveState(dir)).rejects.toThrow("already exists");
    });

    test("a state of another policy is refused", async () => {
      const other = await tabularEngine({ alphabet: "ab" }).createPolicy({ adapter: { kind: "full" } });
      await other.learner.saveState(join(folder, "other"));
      const policy = await full();
      await expect(policy.learner.loadState(join(folder, "other"), { optimizer: true })).rejects.toThrow(
        "49 parameters, but this policy has 64",
      );
      await expect(policy.learner.loadState(join(folder, "none"), { optimizer: true })).rejects.toThrow(
        "no state.json",
      );
      await expect(policy.learner.export(join(folder, "export"), "merged")).rejects.toThrow("no exports");
    });
  });
});

describe("conformance", () => {
  const engine = tabularEngine({
    alphabet: "abcdefghijklmnopqrstuvwxyz",
    logit: (next, previous) => uniforms(deriveSeed(next, previous))() * 4 - 2,
  });
  const folder = temporaryFolder("conformance");

  for (const [index, { name, needs, check }] of conformance.entries()) {
    test.skipIf(needs && !needs(engine.capabilities))(name, () =>
      check(engine, { path: (part) => join(folder, `${index}-${part}`), tolerance: 1e-5 }),
    );
  }
});
