import { expect, it } from "vitest";
import {
  lora,
  madeUpSequences,
  madeUpWeights,
  numTrained,
  plainDescent,
  step,
  withPolicy,
} from "../../conformance/tools.ts";
import { smallBatches, tinyEngine } from "../backends/local/tiny-engine.fixture.ts";
import { runPython } from "../base/python.fixture.ts";
import { totalsOf } from "../trajectories/batch.ts";
import type { TrainingBatch } from "../trajectories/types.ts";
import type { PolicyLossOptions } from "./policy-loss.ts";
import { policyLoss } from "./policy-loss.ts";
import { clipCov, klCov, lossDefaults, policyLosses } from "./policy-losses.ts";

const { at, engine } = tinyEngine("autograd", smallBatches);

/** Steps so large that the weights they are added to do not round them. */
const rate = 1e4;
const covariance = { clip_cov_ratio: 0.2, clip_cov_lb: -5, kl_cov_ratio: 0.3 };
const plain: PolicyLossOptions = {
  ...{ lossFn: "ppo", epsClip: 0.2, epsClipHigh: null, aggMode: null },
  constants: { ...covariance, cpgd_drift_coef: 0.2, clip_ratio_c: 1.5 },
};

interface Case {
  options: Partial<PolicyLossOptions>;
  /** The task of check_losses.py. */
  plain: { loss: string; kl?: string; entropy?: number; high_entropy?: number };
}

const cases: Case[] = [
  ...(Object.keys(policyLosses) as (keyof typeof policyLosses)[]).map((lossFn) => ({
    options: { lossFn },
    plain: { loss: lossFn },
  })),
  { options: { lossFn: "gspo", constants: { gspo_gradient: "sequence" } }, plain: { loss: "gspo_sequence" } },
  ...(["k1", "k2", "k3", "abs"] as const).map((kl) => ({
    options: { lossFn: "gpg" as const, kl: { weight: 0.3, estimator: kl }, entropyCoeff: 0.1 },
    plain: { loss: "gpg", kl, entropy: 0.1 },
  })),
  ...(["ppo", "gspo"] as const).map((lossFn) => ({
    options: { lossFn, highEntropyRatio: 0.5 },
    plain: { loss: lossFn, high_entropy: 0.5 },
  })),
];

it("each loss, its gradient norm and its optimizer step equal autograd's", async () => {
  const sequences = madeUpSequences(engine(), 5);
  const count = numTrained(sequences);
  await withPolicy(engine(), lora(), async (policy) => {
    for (const seed of [1, 2]) await step(policy.learner, sequences, madeUpWeights(count, seed));
    await policy.learner.export(at("before"), "adapter");
    await policy.learner.saveState(at("state"));
    const { logprobs, offsets } = await policy.learner.forward(sequences, {});
    const noise = (seed: number, size: number) => madeUpWeights(count, seed).logprobs.map((value) => size * value);
    const near = (seed: number, size: number) => noise(seed, size).map((value, index) => logprobs[index]! + value);
    const batch: TrainingBatch = {
      sequences,
      offsets,
      advantages: noise(8, 2),
      samplerLogprobs: logprobs,
      // Ratios on both sides of the clip range, so that each branch is taken.
      oldLogprobs: near(7, 0.5),
      referenceLogprobs: near(9, 0.8),
      rolloutWeights: noise(10, 0.5).map((value) => 1 + value),
      groups: new Int32Array(sequences.length),
      roles: sequences.map(() => "solver"),
      totals: totalsOf(offsets),
    };
    const { advantages, oldLogprobs, referenceLogprobs, rolloutWeights } = batch;
    const tokens = {
      logprobs: Float64Array.from(logprobs),
      advantages: Float64Array.from(advantages),
      old: Float64Array.from(oldLogprobs!),
    };
    const marks: Record<string, Uint8Array> = {
      clip_cov: clipCov.mark!(tokens, { ...lossDefaults, ...covariance }),
      kl_cov: klCov.mark!(tokens, { ...lossDefaults, ...covariance }),
    };
    const asked: object[] = [];
    const got: { loss: number; norm: number }[] = [];
    for (const [index, { options, plain: torch }] of cases.entries()) {
      await policy.sampler.load(await policy.learner.loadState(at("state"), { optimizer: false }));
      const { loss } = await policy.learner.forwardBackward(sequences, policyLoss(batch, { ...plain, ...options }));
      const { gradNorm } = await policy.learner.optimStep(plainDescent(rate));
      await policy.learner.export(at(`after-${index}`), "adapter");
      got.push({ loss, norm: gradNorm });
      const chosen = marks[torch.loss];
      asked.push({ ...torch, after: at(`after-${index}`), ...(chosen ? { marks: [...chosen] } : {}) });
    }
    const expected = JSON.parse(
      await runPython("check_losses.py", [], {
        ...{ base: at("model"), before: at("before"), rate, cases: asked },
        sequences: sequences.map((sequence) => [...sequence.tokens]),
        trained: sequences.map(({ trained }) => [...trained]),
        advantages: [...advantages],
        old: [...oldLogprobs!],
        reference: [...referenceLogprobs!],
        weights: [...rolloutWeights!],
      }),
    ) as { loss: number; norm: number; error: number }[];
    const table = cases.map(({ plain: torch }, index) => {
      const [own, theirs] = [got[index]!, expected[index]!];
      const { loss, ...more } = torch;
      return {
        name: [loss, ...Object.entries(more).flat()].join(" "),
        loss: Math.abs(own.loss - theirs.loss) / Math.max(Math.abs(theirs.loss), 0.1),
        norm: Math.abs(own.norm / theirs.norm - 1),
        step: theirs.error,
      };
    });
    console.table(table);
    for (const { name, ...apart } of table) {
      for (const [what, error] of Object.entries(apart)) expect(error, `${name}: ${what}`).toBeLessThan(1e-5);
    }
  });
}, 240_000);
