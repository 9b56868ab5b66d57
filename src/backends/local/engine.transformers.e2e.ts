import { describe, expect, it } from "vitest";
import {
  assertClose,
  lora,
  madeUpSequences,
  madeUpWeights,
  numTrained,
  plainDescent,
  step,
  withPolicy,
} from "../../../conformance/tools.ts";
import type { Loss } from "../../algorithms/types.ts";
import { runPython } from "../../base/python.fixture.ts";
import type { Sequence } from "../../trajectories/types.ts";
import type { Policy } from "../engine.ts";
import { openLocalEngine } from "./engine.ts";
import { tinyEngine } from "./tiny-engine.fixture.ts";

const { at, engine } = tinyEngine("transformers");

async function train(policy: Policy, ...seeds: number[]): Promise<void> {
  const sequences = madeUpSequences(engine());
  for (const seed of seeds) await step(policy.learner, sequences, madeUpWeights(numTrained(sequences), seed));
}

/** Every token but the first is trained. */
const whole = (sequences: readonly Sequence[]): Sequence[] =>
  sequences.map(({ tokens }) => ({ tokens, trained: new Uint8Array(tokens.length - 1).fill(1) }));

interface Plain {
  what: string;
  base: string;
  adapter?: string;
  logprobs: Float32Array;
}

/** Compares with plain transformers, in one process for all models. */
async function expectPlain(sequences: readonly Sequence[], models: readonly Plain[]): Promise<void> {
  const input = {
    models: models.map(({ base, adapter }) => ({ base, adapter })),
    sequences: sequences.map(({ tokens }) => [...tokens]),
  };
  const plain = JSON.parse(await runPython("check_export.py", [], input)) as number[][][];
  for (const [index, { what, logprobs }] of models.entries()) assertClose(logprobs, plain[index]!.flat(), 1e-4, what);
}

/** PPO's clipped objective with an entropy bonus, summed, written out for this comparison. `starts`: of each sequence's trained tokens. */
function ppo(
  advantages: readonly number[],
  old: readonly number[],
  starts: Int32Array,
  clip: number,
  entropyWeight: number,
): Loss {
  return {
    name: "ppo",
    outputs: { entropy: true },
    evaluate({ offsets, logprobs, entropy }, members) {
      let loss = 0;
      const gradient = {
        logprobs: new Float32Array(logprobs.length),
        entropy: new Float32Array(logprobs.length).fill(-entropyWeight),
      };
      members.forEach((member, row) => {
        for (let index = offsets[row]!; index < offsets[row + 1]!; index++) {
          const place = starts[member]! + index - offsets[row]!;
          const [advantage, ratio] = [advantages[place]!, Math.exp(logprobs[index]! - old[place]!)];
          const clipped = Math.min(Math.max(ratio, 1 - clip), 1 + clip);
          loss -= Math.min(ratio * advantage, clipped * advantage) + entropyWeight * entropy![index]!;
          gradient.logprobs[index] = ratio * advantage <= clipped * advantage ? -ratio * advantage : 0;
        }
      });
      return { loss, gradient, metrics: {} };
    },
  };
}

describe("compared with plain transformers", () => {
  it("the base model, an exported adapter and merged weights have equal log-probabilities", async () => {
    const sequences = whole(madeUpSequences(engine(), 3));
    const found: Plain[] = [];
    await withPolicy(engine(), { kind: "none" }, async (base) => {
      const { logprobs } = await base.learner.forward(sequences, {});
      found.push({ what: "the base model", base: at("model"), logprobs });
    });
    const everything = { ...lora(), targets: ["attn", "mlp", "unembed"] as const };
    await withPolicy(engine(), everything, async (policy) => {
      await train(policy, 1, 2);
      const { logprobs } = await policy.learner.forward(sequences, {});
      await policy.learner.export(at("adapter"), "adapter");
      await policy.learner.export(at("merged"), "merged");
      found.push({ what: "the adapter in PEFT", base: at("model"), adapter: at("adapter"), logprobs });
      found.push({ what: "the merged weights", base: at("merged"), logprobs });
    });
    await withPolicy(engine(), { kind: "full" }, async (policy) => {
      await train(policy, 1, 2);
      const { logprobs } = await policy.learner.forward(sequences, {});
      await policy.learner.export(at("full"), "merged");
      found.push({ what: "all weights", base: at("full"), logprobs });
    });
    await expectPlain(sequences, found);
  });

  it("merged weights open in the engine again", async () => {
    const sequences = whole(madeUpSequences(engine(), 4));
    const logprobs = await withPolicy(engine(), lora(), async (policy) => {
      await train(policy, 1);
      await policy.learner.export(at("again"), "merged");
      return (await policy.learner.forward(sequences, {})).logprobs;
    });
    const reopened = await openLocalEngine({
      model: at("again"),
      device: "cpu",
      dtype: "float32",
      cacheDir: at("cache"),
    });
    try {
      const opened = await withPolicy(reopened, { kind: "none" }, (base) => base.learner.forward(sequences, {}));
      assertClose(opened.logprobs, logprobs, 1e-4, "the reopened model");
    } finally {
      await reopened.close();
    }
  });

  it("the gradient of a PPO loss equals autograd's", async () => {
    const sequences = madeUpSequences(engine(), 5);
    const count = numTrained(sequences);
    const rate = 1e-3;
    await withPolicy(engine(), lora(), async (policy) => {
      await train(policy, 1, 2);
      await policy.learner.export(at("before"), "adapter");
      const { logprobs, offsets } = await policy.learner.forward(sequences, {});
      // Ratios on both sides of the clip range, so that each branch is taken.
      const old = Array.from(madeUpWeights(count, 7).logprobs, (noise, index) => logprobs[index]! + noise * 0.5);
      const advantages = Array.from(madeUpWeights(count, 8).logprobs);
      const { loss } = await policy.learner.forwardBackward(sequences, ppo(advantages, old, offsets, 0.2, 0.1));
      const { gradNorm } = await policy.learner.optimStep(plainDescent(rate));
      await policy.learner.export(at("after"), "adapter");
      const plain = JSON.parse(
        await runPython("check_gradient.py", [], {
          base: at("model"),
          before: at("before"),
          after: at("after"),
          sequences: sequences.map(({ tokens }) => [...tokens]),
          trained: sequences.map(({ trained }) => [...trained]),
          advantages,
          old,
          clip: 0.2,
          entropy_weight: 0.1,
          rate,
        }),
      ) as { loss: number; norm: number; error: number };
      assertClose([loss / plain.loss, gradNorm / plain.norm], [1, 1], 1e-5, "loss and norm, relative");
      // A step of this size is read back from single-precision weights, which rounds it.
      expect(plain.error).toBeLessThan(1e-3);
    });
  });
});
