/** Checks of critics: values that begin at 0, their gradient, their own saved state, and no sampling. */
import assert from "node:assert/strict";
import type { Loss } from "../src/algorithms/types.ts";
import type { Capabilities, Engine, Learner } from "../src/backends/engine.ts";
import type { Sequence } from "../src/trajectories/types.ts";
import {
  assertClose,
  assertDiffer,
  assertRatio,
  type ConformanceCheck,
  dot,
  linearLoss,
  lora,
  madeUpSequences,
  madeUpTokens,
  madeUpWeights,
  numTrained,
  ordinary,
  plainDescent,
  withLearner,
} from "./tools.ts";

const needs = ({ outputs }: Capabilities): boolean => outputs.includes("values");

const withCritic = <T>(engine: Engine, use: (critic: Learner) => Promise<T>): Promise<T> =>
  withLearner(engine, { adapter: lora(), head: "value" }, use);

/** `sum(weights * values)`: the linear loss of ./tools.ts by values. */
function linearValueLoss(sequences: readonly Sequence[], weights: Float32Array): Loss {
  const inner = linearLoss(sequences, { logprobs: weights });
  return {
    name: "linear",
    outputs: { values: true },
    evaluate({ offsets, logprobs, values }, members) {
      assert.deepEqual([logprobs.length, values!.length], [0, offsets.at(-1)], "a critic returns only values");
      const { loss, gradient } = inner.evaluate({ offsets, logprobs: values! }, members);
      return { loss, gradient: { logprobs: new Float32Array(0), values: gradient.logprobs }, metrics: {} };
    },
  };
}

const valuesOf = async (critic: Learner, sequences: readonly Sequence[]): Promise<Float32Array> =>
  (await critic.forward(sequences, { values: true })).values!;

async function step(critic: Learner, sequences: readonly Sequence[], seed: number, adam = ordinary, factor = 1) {
  const weights = madeUpWeights(numTrained(sequences), seed).logprobs.map((weight) => weight * factor);
  await critic.forwardBackward(sequences, linearValueLoss(sequences, weights));
  return critic.optimStep(adam);
}

export const valueChecks: ConformanceCheck[] = [
  {
    name: "a critic's values are 0 at first, then those of the states before the trained tokens",
    needs,
    check: (engine, { tolerance }) =>
      withCritic(engine, async (critic) => {
        const sequences = madeUpSequences(engine);
        const first = await valuesOf(critic, sequences);
        assert.deepEqual([...first], new Array(numTrained(sequences)).fill(0));
        for (const seed of [1, 2]) await step(critic, sequences, seed);
        assertDiffer(await valuesOf(critic, sequences), first, tolerance * 10, "values after training");
        // The value before a token does not depend on that token.
        const [a, b] = [3, 4].map((seed) => ({
          tokens: Int32Array.of(...madeUpTokens(engine, 1, 5), ...madeUpTokens(engine, seed, 1)),
          trained: Uint8Array.of(0, 0, 0, 0, 1),
        }));
        const [ofA, ofB] = [await valuesOf(critic, [a!]), await valuesOf(critic, [b!])];
        assertClose(ofA, ofB, tolerance, "the state before the token");
        assertClose(await valuesOf(critic, [a!, b!]), [ofA[0]!, ofB[0]!], tolerance, "together and one by one");
      }),
  },
  {
    name: "the gradient by values is that of finite differences",
    needs,
    check: (engine, { path }) =>
      withCritic(engine, async (critic) => {
        const sequences = madeUpSequences(engine, 3);
        for (const seed of [1, 2]) await step(critic, sequences, seed);
        const point = path("point");
        await critic.saveState(point);
        const weights = madeUpWeights(numTrained(sequences), 11).logprobs;
        const { gradNorm } = await step(critic, sequences, 11, plainDescent(0));
        const rate = 0.005 / gradNorm;
        const moved: number[] = [];
        for (const sign of [-1, 1]) {
          await critic.loadState(point, { optimizer: false });
          await step(critic, sequences, 11, plainDescent(rate), sign);
          moved.push(dot(weights, await valuesOf(critic, sequences)));
        }
        assertRatio((moved[0]! - moved[1]!) / (2 * rate), gradNorm ** 2, 0.02, "the loss along its own gradient");
      }),
  },
  {
    name: "a critic's saved state restores head, adapter and optimizer exactly, and fits critics only",
    needs,
    check: async (engine, { path }) => {
      const sequences = madeUpSequences(engine);
      const dir = path("critic");
      const saved = await withCritic(engine, async (critic) => {
        for (const seed of [1, 2]) await step(critic, sequences, seed);
        await critic.saveState(dir);
        const at = await valuesOf(critic, sequences);
        await step(critic, sequences, 3);
        return { at, next: await valuesOf(critic, sequences) };
      });
      await withCritic(engine, async (critic) => {
        await step(critic, sequences, 9);
        await critic.loadState(dir, { optimizer: true });
        assert.deepEqual(await valuesOf(critic, sequences), saved.at);
        await step(critic, sequences, 3);
        assert.deepEqual(await valuesOf(critic, sequences), saved.next, "the next step, bit for bit");
      });
      const other = await engine.createPolicy({ adapter: lora() });
      await assert.rejects(
        other.learner.loadState(dir, { optimizer: true }),
        "a policy without a head refuses a critic's state",
      );
      await other.learner.close();
    },
  },
  {
    name: "a critic does not change the policy, does not sample and returns only values",
    needs,
    check: async (engine) => {
      const sequences = madeUpSequences(engine);
      const policy = await engine.createLearner({ adapter: lora(5) });
      const before = await policy.forward(sequences, {});
      await withCritic(engine, async (critic) => {
        for (const seed of [1, 2]) await step(critic, sequences, seed);
        assert.deepEqual((await policy.forward(sequences, {})).logprobs, before.logprobs);
        await assert.rejects(critic.forward(sequences, {}), /values/);
      });
      await assert.rejects(policy.forward(sequences, { values: true }), /value head/);
      await policy.close();
      await assert.rejects(engine.createLearner({ adapter: { kind: "none" }, head: "value" }), /value head/);
    },
  },
];
