import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { madeUpSequences, plainDescent } from "../../../conformance/tools.ts";
import type { PolicyLossOptions } from "../../algorithms/policy-loss/loss-choice.ts";
import { policyLoss } from "../../algorithms/policy-loss/policy-loss.ts";
import type { Loss } from "../../algorithms/types.ts";
import { NonFiniteLossError } from "../../backends/check-loss-value.ts";
import type { Policy } from "../../backends/engine.ts";
import { uniforms } from "../../random.ts";
import { memory, temporaryFolder } from "../../temporary-folder.fixture.ts";
import { offsetsOf, totalsOf } from "../../trajectories/batch.ts";
import type { TrainingBatch } from "../../trajectories/types.ts";
import { type OpenedTinker, openTinker } from "../tinker-engine.fixture.ts";

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

const twoPasses =
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
      const plainly = await stepBy(twoPasses(options), batch);
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
  const options = { ...base, lossFn: "importance_sampling", aggMode: "seq-mean-token-sum-norm", lossScale } as const;
  await policy.learner.forwardBackward(batch.sequences, policyLoss(batch, base));
  await expect(policy.learner.forwardBackward(broken.sequences, policyLoss(broken, options))).rejects.toThrow(
    NonFiniteLossError,
  );
  await policy.learner.zeroGrad();
  expect(await policy.learner.optimStep(plainDescent(0.5))).toEqual({ gradNorm: 0, applied: true });
  expect((await policy.learner.forward(batch.sequences, {})).logprobs).toEqual(before.logprobs);
  await opened.close();
});
