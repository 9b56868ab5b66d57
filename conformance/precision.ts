/** Checks of an optimizer step in every precision of the weights. They need no tolerance, so they also run in low precision. */
import assert from "node:assert/strict";
import type { Engine, LearnerSpec } from "../src/backends/engine.ts";
import { type ConformanceCheck, madeUpSequences, numTrained, ordinary, step, withLearner } from "./tools.ts";

/** Low precision blurs the log-probabilities of a small model, so the changes of several adapters are added up. */
const seeds = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

/** The change of the summed log-probabilities by one step that raises (1) or lowers (-1) them. */
async function change(engine: Engine, direction: 1 | -1): Promise<number> {
  let total = 0;
  for (const seed of seeds) {
    const sequences = madeUpSequences(engine, seed);
    const weights = { logprobs: new Float32Array(numTrained(sequences)).fill(-direction) };
    const adapter = { kind: "lora", rank: 32, alpha: 256, targets: ["attn", "mlp"], seed } as const;
    total += await withLearner(engine, { adapter } satisfies LearnerSpec, async (learner) => {
      const { loss } = await step(learner, sequences, weights, { ...ordinary, learningRate: 2e-6 });
      const { logprobs } = await learner.forward(sequences, {});
      return logprobs.reduce((sum, value) => sum + value, 0) + direction * loss;
    });
  }
  return total;
}

export const precisionChecks: ConformanceCheck[] = [
  {
    name: "a step at 2e-6 in either direction moves the log-probabilities in that direction",
    check: async (engine) => {
      const [up, down] = [await change(engine, 1), await change(engine, -1)];
      assert.ok(up > 0 && down < 0, `the steps changed the log-probabilities by ${up} and ${down}`);
    },
  },
];
