import { expect, it } from "vitest";
import {
  lora,
  madeUpSequences,
  madeUpWeights,
  numTrained,
  ordinary,
  plainDescent,
} from "../../../conformance/tools.ts";
import { valueLoss } from "../../algorithms/critic.ts";
import { runPython } from "../../base/python.fixture.ts";
import { totalsOf } from "../../trajectories/batch.ts";
import type { TrainingBatch } from "../../trajectories/types.ts";
import type { AdapterSpec } from "../engine.ts";
import { smallBatches, tinyEngine } from "./tiny-engine.fixture.ts";

const { at, engine } = tinyEngine("critic", smallBatches);

/** A step so large that the weights it is added to do not round it. */
const rate = 1e4;

it.each<[string, AdapterSpec, number]>([
  ["an adapter", lora(), 2],
  ["all weights", { kind: "full" }, 0],
])(
  "the value loss of %s, its gradient's norm and the step it makes are autograd's",
  async (name, adapter, scale) => {
    const sequences = madeUpSequences(engine(), 5);
    const noise = (seed: number, size: number) =>
      madeUpWeights(numTrained(sequences), seed).logprobs.map((value) => size * value);
    const critic = await engine().createLearner({ adapter, head: "value" });
    try {
      const { offsets } = await critic.forward(sequences, { values: true });
      const batch: TrainingBatch = {
        ...{ sequences, offsets, advantages: noise(1, 1), samplerLogprobs: noise(1, 1), returns: noise(2, 2) },
        groups: new Int32Array(sequences.length),
        roles: sequences.map(() => "solver"),
        totals: totalsOf(offsets),
      };
      for (let step = 0; step < 3; step++) {
        await critic.forwardBackward(sequences, valueLoss(batch, { aggMode: "token-mean", clip: null }));
        await critic.optimStep(ordinary);
      }
      const { values } = await critic.forward(sequences, { values: true });
      // Old values on both sides of the clip range, so that each branch is taken.
      const oldValues = noise(3, 0.5).map((value, index) => value + values![index]!);
      await critic.saveState(at(`${name}-before`));
      await critic.loadState(at(`${name}-before`), { optimizer: false });
      const loss = valueLoss({ ...batch, oldValues }, { aggMode: "token-mean", clip: 0.2 });
      const own = await critic.forwardBackward(sequences, loss);
      const { gradNorm } = await critic.optimStep(plainDescent(rate));
      await critic.saveState(at(`${name}-after`));
      const plain = JSON.parse(
        await runPython("check_value_loss.py", [], {
          ...{ base: at("model"), before: at(`${name}-before`), after: at(`${name}-after`), rate, scale, clip: 0.2 },
          sequences: sequences.map(({ tokens }) => [...tokens]),
          trained: sequences.map(({ trained }) => [...trained]),
          returns: [...batch.returns!],
          old: [...oldValues],
        }),
      ) as { loss: number; norm: number; error: number; clipped: number };
      expect(plain.clipped).toBeGreaterThan(0.1);
      expect(plain.clipped).toBeLessThan(0.9);
      expect(Math.abs(own.loss / plain.loss - 1)).toBeLessThan(1e-5);
      expect(Math.abs(gradNorm / plain.norm - 1)).toBeLessThan(1e-5);
      expect(plain.error).toBeLessThan(1e-5);
      console.table({ loss: own.loss / plain.loss - 1, norm: gradNorm / plain.norm - 1, step: plain.error });
    } finally {
      await critic.close();
    }
  },
  120_000,
);
