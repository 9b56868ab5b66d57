import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { madeUpSequences, plainDescent } from "../../../conformance/tools.ts";
import { type PolicyLossOptions, policyLoss } from "../../algorithms/policy-loss.ts";
import type { Loss } from "../../algorithms/types.ts";
import type { Policy } from "../../backends/engine.ts";
import { NonFiniteLossError } from "../../backends/engine-parts.ts";
import { uniforms } from "../../base/values.ts";
import { memory, temporaryFolder } from "../../temporary-folder.fixture.ts";
import { offsetsOf, totalsOf } from "../../trajectories/batch.ts";
import type { TrainingBatch } from "../../trajectories/types.ts";
import { lossConfig, sumLoss, tinkerLoss } from "./losses.ts";
import { type OpenedTinker, openTinker } from "./tinker-engine.fixture.ts";

/** The worked examples of the protocol's description, in float64; the code computes in float32. */
const p = Float32Array.of(-0.5, -1.2, -0.1, -2);
const inputs = {
  logprobs: Float32Array.of(-0.7, -1, -0.6, -1.5),
  advantages: Float32Array.of(1, 1, -1, -0.5),
  weights: Float32Array.of(0, 1, 1, 0.5),
  sequence_ratio_mask: Float32Array.of(0, 1, 1, 1),
};

const worked: [name: string, config: Record<string, number>, loss: number, slopes: number[]][] = [
  ["cross_entropy", {}, 2.3, [0, -1, -1, -0.5]],
  ["importance_sampling", {}, -0.088147, [-1.221403, -0.818731, 1.648721, 0.303265]],
  ["ppo", {}, 0.029991, [0, -0.818731, 1.648721, 0]],
  ["cispo", {}, 0.821775, [-1.221403, -0.818731, 1.648721, 0.303265]],
  ["cispo", { clip_low_threshold: 0.8, clip_high_threshold: 1.2 }, 0.662477, [-1.2, -0.818731, 1.2, 0.4]],
  ["dro", { beta: 0.05 }, 0.6145, [-0.99, -1.01, 1.025, 0.475]],
  ["dro", { beta: 0.1 }, 0.629, [-0.98, -1.02, 1.05, 0.45]],
  ["gspo", {}, -0.467753, [-0.935507, -0.935507, 0.935507, 0.467753]],
];

test.each(worked)("%s with %o", (name, config, loss, slopes) => {
  const built = sumLoss(name, [{}, inputs], lossConfig(name, config));
  const offsets = Int32Array.of(0, 4);
  const value = built.evaluate({ offsets, logprobs: p }, Int32Array.of(1));
  expect(value.loss).toBeCloseTo(loss, 5);
  slopes.forEach((slope, index) => {
    expect(value.gradient.logprobs[index]).toBeCloseTo(slope, 5);
  });
});

test("a clipped token has no gradient at all", () => {
  const { gradient } = sumLoss("ppo", [inputs], lossConfig("ppo", {})).evaluate(
    { offsets: Int32Array.of(0, 4), logprobs: p },
    Int32Array.of(0),
  );
  expect([gradient.logprobs[0], gradient.logprobs[3]].map((slope) => Math.abs(slope!))).toEqual([0, 0]);
});

test("a weight of zero leaves out a token that is impossible", () => {
  const { loss } = sumLoss("cross_entropy", [{ weights: Float32Array.of(0, 1) }], {}).evaluate(
    { offsets: Int32Array.of(0, 2), logprobs: Float32Array.of(Number.NEGATIVE_INFINITY, -1) },
    Int32Array.of(0),
  );
  expect(loss).toBe(1);
});

test("an unknown loss or setting names the known ones", () => {
  expect(() => tinkerLoss("pp")).toThrow(/Did you mean ppo/);
  expect(() => tinkerLoss("stable_reinforce")).toThrow(/not published/);
  expect(() => tinkerLoss("toString")).toThrow(/"toString" does not exist/);
  expect(() => lossConfig("ppo", { clip_low: 0.9 })).toThrow(/it has clip_low_threshold, clip_high_threshold/);
  expect(() => lossConfig("importance_sampling", { beta: 1 })).toThrow(/it has no settings/);
  expect(() => lossConfig("dro", {})).toThrow(/beta must be given/);
  expect(() => lossConfig("dro", { beta: "0.1" })).toThrow(/not a finite number/);
  expect(() => lossConfig("ppo", { clip_low_threshold: 2 })).toThrow(/above/);
  expect(() =>
    sumLoss("gspo", [{ ...inputs, sequence_ratio_mask: new Float32Array(4) }], lossConfig("gspo", {})).evaluate(
      { offsets: Int32Array.of(0, 4), logprobs: p },
      Int32Array.of(0),
    ),
  ).toThrow(/0 everywhere/);
});

const root = temporaryFolder("named", memory);

const base: PolicyLossOptions = {
  ...{ lossFn: "ppo", epsClip: 0.2, epsClipHigh: 0.28, aggMode: null, lossScale: 12 },
};

/** Replies with old log-probabilities at some distance, so that some tokens are clipped. */
async function made(policy: Policy, { old, weights }: { old: boolean; weights: boolean }): Promise<TrainingBatch> {
  const sequences = madeUpSequences(opened.engine, 3);
  const offsets = offsetsOf(sequences.map(({ trained }) => trained.reduce((sum, flag) => sum + flag, 0)));
  const random = uniforms(7);
  const current = (await policy.learner.forward(sequences, {})).logprobs;
  const advantages = new Float32Array(current.length);
  sequences.forEach((_, index) => {
    advantages.fill(random() * 4 - 2, offsets[index]!, offsets[index + 1]!);
  });
  return {
    ...{ sequences, offsets, advantages, samplerLogprobs: current },
    ...(old ? { oldLogprobs: current.map((logprob) => logprob - (random() - 0.5)) } : {}),
    ...(weights ? { rolloutWeights: current.map(() => 2 * random()) } : {}),
    groups: Int32Array.from(sequences.keys()),
    roles: sequences.map(() => "solver"),
    totals: totalsOf(offsets),
  };
}

let opened: OpenedTinker;

/** The gradient's norm, the step that it makes, and what is reported of the loss. */
async function stepBy(loss: (batch: TrainingBatch) => Loss, batch: { old: boolean; weights: boolean }) {
  const policy = await opened.engine.createPolicy({
    adapter: { kind: "lora", rank: 2, alpha: 32, targets: ["attn"], seed: 1 },
  });
  const own = await made(policy, batch);
  const before = await opened.engine.stats();
  const built = loss(own);
  const { outputs, ...value } = await policy.learner.forwardBackward(own.sequences, built);
  const after = await opened.engine.stats();
  const { gradNorm } = await policy.learner.optimStep(plainDescent(0.1));
  const moved = [...(await policy.learner.forward(own.sequences, {})).logprobs];
  const counted = (name: string) => after[name]! - before[name]!;
  return {
    hosted: built.hosted?.(),
    paths: [counted("tinker/named_losses"), counted("tinker/two_pass_losses")],
    ...{ gradNorm, moved, value, logprobs: [...outputs.logprobs] },
  };
}

const twoMicrobatches =
  (options: PolicyLossOptions) =>
  (batch: TrainingBatch): Loss => {
    const { hosted: _, ...loss } = policyLoss(batch, options);
    return loss;
  };

const modes = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"] as const;
const policyLosses = ["ppo", "importance_sampling", "cispo", "cross_entropy", "gpg"] as const;

describe.each([
  ["Hone's own service", false],
  ["a service that has the protocol alone", true],
])("%s", (_, plain) => {
  beforeAll(async () => {
    opened = await openTinker({ stateFolder: join(root, String(plain)), plain });
  });
  afterAll(() => opened.close());

  test.each([
    ...modes.map((aggMode) => ({ lossFn: "ppo" as const, aggMode, old: true, weights: false })),
    ...policyLosses.map((lossFn) => ({ lossFn, aggMode: null, old: true, weights: true })),
    ...policyLosses.map((lossFn) => ({ lossFn, aggMode: null, old: false, weights: false })),
    ...(["dro", "gspo", "sapo"] as const).map((lossFn) => ({ lossFn, aggMode: null, old: false, weights: true })),
    ...(plain ? [] : [{ lossFn: "dro" as const, aggMode: "token-mean" as const, old: true, weights: false }]),
  ])(
    "$lossFn by name gives the gradient of the two-pass loss: $aggMode, old $old, weights $weights",
    async ({ lossFn, aggMode, ...batch }) => {
      const options = { ...base, lossFn, aggMode };
      const named = await stepBy((own) => policyLoss(own, options), batch);
      const plainly = await stepBy(twoMicrobatches(options), batch);
      expect(named.hosted?.tinker?.name).toBe(batch.old && lossFn !== "gpg" ? lossFn : "cross_entropy");
      expect([named.paths, plainly.paths]).toEqual([
        [1, 0],
        [0, 1],
      ]);
      expect(plainly.gradNorm).toBeGreaterThan(1e-3);
      expect(named.gradNorm / plainly.gradNorm).toBeCloseTo(1, 5);
      const moved = Math.max(...named.moved.map((logprob, index) => Math.abs(logprob - named.logprobs[index]!)));
      expect(moved).toBeGreaterThan(1e-3);
      named.moved.forEach((logprob, index) => {
        expect(logprob / plainly.moved[index]!).toBeCloseTo(1, 5);
      });
      expect(named.logprobs).toEqual(plainly.logprobs);
      expect(named.value).toEqual(plainly.value);
    },
  );

  test.each([
    ["a KL term", { kl: { weight: 0.1, estimator: "k3" as const } }],
    ["dual clip", { constants: { clip_ratio_c: 3 } }],
    ["a loss that the service does not support", { lossFn: "sapo" as const }],
    ["dro with weights of its own for each sequence", { lossFn: "dro" as const, aggMode: modes[2] }],
  ])("%s takes two passes", async (_name, more) => {
    const options = { ...base, ...more };
    const loss = (own: TrainingBatch) => policyLoss({ ...own, referenceLogprobs: own.samplerLogprobs }, options);
    const { paths } = await stepBy(loss, { old: true, weights: false });
    expect(paths).toEqual([0, 1]);
  });

  test("dro by name requires a service that excludes the prompt from the loss", async () => {
    const loss = (own: TrainingBatch) => policyLoss(own, { ...base, lossFn: "dro" });
    const { paths, hosted } = await stepBy(loss, { old: true, weights: false });
    expect(hosted?.tinker?.name).toBe("dro");
    expect(paths).toEqual(plain ? [0, 1] : [1, 0]);
  });
});

test.each([
  // The first reaches the service, where its gradient overflows; the second is noticed before it is sent.
  ["a gradient", 3.3e38, 1],
  ["an advantage", 3.3e38, 0.01],
])("%s of a named loss that is not finite drops the step without stopping the run", async (_, advantage, lossScale) => {
  opened = await openTinker({ stateFolder: join(root, `bad-${lossScale}`) });
  const policy = await opened.engine.createPolicy({
    adapter: { kind: "lora", rank: 2, alpha: 32, targets: ["attn"], seed: 1 },
  });
  const batch = await made(policy, { old: true, weights: false });
  const before = await policy.learner.forward(batch.sequences, {});
  const broken = { ...batch, advantages: batch.advantages.map(() => advantage) };
  const scale = { aggMode: "seq-mean-token-sum-norm", lossScale: lossScale / batch.totals.sequences } as const;
  const options = { ...base, lossFn: "importance_sampling", ...scale } as const;
  await policy.learner.forwardBackward(batch.sequences, policyLoss(batch, base));
  await expect(policy.learner.forwardBackward(broken.sequences, policyLoss(broken, options))).rejects.toThrow(
    NonFiniteLossError,
  );
  await policy.learner.zeroGrad();
  expect(await policy.learner.optimStep(plainDescent(0.5))).toEqual({ gradNorm: 0, applied: true });
  expect((await policy.learner.forward(batch.sequences, {})).logprobs).toEqual(before.logprobs);
  await opened.close();
});
