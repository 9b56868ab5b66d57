/** Checks that forwardBackward and optimStep apply exactly the loss's gradient, and that forward agrees with them. */
import assert from "node:assert/strict";
import type { Engine, Learner } from "../src/backends/engine.ts";
import { NonFiniteLossError } from "../src/backends/engine-parts.ts";
import {
  added,
  assertClose,
  assertDiffer,
  assertRatio,
  type ConformanceCheck,
  type ConformanceHelpers,
  linearLoss,
  lora,
  madeUpSequences,
  madeUpWeights,
  numTrained,
  ordinary,
  plainDescent,
  scaled,
  step,
  type Weights,
  withLearner,
} from "./tools.ts";

/** Runs `use` with a learner that can return to one trained point again and again. */
async function atOnePoint<T>(
  engine: Engine,
  { path }: ConformanceHelpers,
  use: (learner: Learner, back: () => Promise<void>) => Promise<T>,
): Promise<T> {
  return withLearner(engine, { adapter: lora() }, async (learner) => {
    const sequences = madeUpSequences(engine, 2);
    for (const seed of [1, 2]) await step(learner, sequences, madeUpWeights(numTrained(sequences), seed));
    const point = path("point");
    await learner.saveState(point);
    return use(learner, async () => {
      await learner.loadState(point, { optimizer: false });
    });
  });
}

/**
 * How far the weights move in a step that is measured: too little for the loss's curvature to matter, also in a real model,
 * and much more than rounding.
 */
const stepLength = 0.005;

/** Compares the pull-back with finite differences, for these outputs. */
async function againstFiniteDifferences(engine: Engine, helpers: ConformanceHelpers, entropy: boolean): Promise<void> {
  await atOnePoint(engine, helpers, async (learner, back) => {
    const sequences = madeUpSequences(engine, 3);
    const [a, b] = [11, 12].map((seed) => madeUpWeights(numTrained(sequences), seed, entropy)) as [Weights, Weights];
    const value = async (weights: Weights): Promise<number> => {
      const outputs = await learner.forward(sequences, entropy ? { entropy: true } : {});
      return linearLoss(sequences, weights).evaluate(outputs, Int32Array.from(sequences.keys())).loss;
    };
    const norm = async (weights: Weights): Promise<number> => {
      await back();
      return (await step(learner, sequences, weights, plainDescent(0))).gradNorm;
    };
    const [normA, normB, normSum] = [await norm(a), await norm(b), await norm(added(a, b))];
    const inner = (normSum ** 2 - normA ** 2 - normB ** 2) / 2;

    // Moves the weights along a's gradient in both directions and measures both losses.
    const rate = stepLength / normA;
    const moved = async (sign: number): Promise<[number, number]> => {
      await back();
      await step(learner, sequences, scaled(a, sign), plainDescent(rate));
      return [await value(a), await value(b)];
    };
    const [down, up] = [await moved(1), await moved(-1)];
    assertRatio((up[0] - down[0]) / (2 * rate), normA ** 2, 0.02, "the loss along its own gradient");
    const scale = normA * normB;
    assertClose([(up[1] - down[1]) / (2 * rate) / scale], [inner / scale], 0.02, "another loss along that gradient");
  });
}

export const gradientChecks: ConformanceCheck[] = [
  {
    name: "the gradient by log-probabilities is that of finite differences",
    check: (engine, helpers) => againstFiniteDifferences(engine, helpers, false),
  },
  {
    name: "the gradient by entropies is that of finite differences",
    needs: ({ outputs }) => outputs.includes("entropy"),
    check: (engine, helpers) => againstFiniteDifferences(engine, helpers, true),
  },
  {
    name: "gradients are linear in the loss and add up over calls",
    check: (engine, helpers) =>
      atOnePoint(engine, helpers, async (learner, back) => {
        const sequences = madeUpSequences(engine, 4);
        const [a, b] = [21, 22].map((seed) => madeUpWeights(numTrained(sequences), seed)) as [Weights, Weights];
        const single = await step(learner, sequences, a, plainDescent(0));
        await back();
        const tripled = await step(learner, sequences, scaled(a, 3), plainDescent(0));
        assertRatio(tripled.gradNorm, 3 * single.gradNorm, 1e-4, "three times the loss");
        await back();
        const rate = stepLength / single.gradNorm;
        const sum = await step(learner, sequences, added(a, b), plainDescent(rate));
        const afterSum = await learner.forward(sequences, {});
        await back();
        await learner.forwardBackward(sequences, linearLoss(sequences, a));
        const twoCalls = await step(learner, sequences, b, plainDescent(rate));
        assertRatio(twoCalls.gradNorm, sum.gradNorm, 1e-4, "two losses in two calls");
        assertClose(
          (await learner.forward(sequences, {})).logprobs,
          afterSum.logprobs,
          helpers.tolerance,
          "weights after two calls",
        );
      }),
  },
  {
    name: "sequences together give the same outputs and gradient as one by one",
    check: (engine, helpers) =>
      atOnePoint(engine, helpers, async (learner, back) => {
        const sequences = madeUpSequences(engine, 5);
        const weights = madeUpWeights(numTrained(sequences), 31);
        const loss = linearLoss(sequences, weights);
        const together = await learner.forward(sequences, {});
        const { gradNorm } = await step(learner, sequences, weights, plainDescent(0));
        const small = plainDescent(stepLength / gradNorm);
        await back();
        await step(learner, sequences, weights, small);
        const after = await learner.forward(sequences, {});
        await back();
        for (const [index, sequence] of sequences.entries()) {
          const own = together.logprobs.subarray(together.offsets[index]!, together.offsets[index + 1]!);
          assertClose((await learner.forward([sequence], {})).logprobs, own, helpers.tolerance, `sequence ${index}`);
          await learner.forwardBackward([sequence], {
            ...loss,
            evaluate: (outputs) => loss.evaluate(outputs, Int32Array.of(index)),
          });
        }
        assertRatio((await learner.optimStep(small)).gradNorm, gradNorm, 1e-4, "the gradient's norm");
        assertClose(
          (await learner.forward(sequences, {})).logprobs,
          after.logprobs,
          helpers.tolerance,
          "weights after the step",
        );
      }),
  },
  {
    name: "forwardBackward gives forward's outputs and the loss's value and metrics",
    check: (engine, helpers) =>
      atOnePoint(engine, helpers, async (learner, back) => {
        const sequences = madeUpSequences(engine, 6);
        const weights = madeUpWeights(numTrained(sequences), 41);
        const outputs = await learner.forward(sequences, {});
        const expected = linearLoss(sequences, weights).evaluate(outputs, Int32Array.from(sequences.keys())).loss;
        const norms: number[] = [];
        for (const coupled of [false, true]) {
          await back();
          const result = await learner.forwardBackward(sequences, linearLoss(sequences, weights, { coupled }));
          assertClose(result.outputs.logprobs, outputs.logprobs, helpers.tolerance, "outputs");
          assert.deepEqual(result.outputs.offsets, outputs.offsets);
          assertClose([result.loss], [expected], helpers.tolerance * 10, "the loss");
          assert.equal(result.metrics.tokens?.sum, numTrained(sequences));
          norms.push((await learner.optimStep(plainDescent(0))).gradNorm);
        }
        assertRatio(norms[1]!, norms[0]!, 1e-4, "a loss that needs the whole batch first");
      }),
  },
  {
    name: "trainStep is forwardBackward and optimStep",
    check: (engine, helpers) =>
      atOnePoint(engine, helpers, async (learner, back) => {
        if (!learner.trainStep) return;
        const sequences = madeUpSequences(engine, 6);
        const loss = linearLoss(sequences, madeUpWeights(numTrained(sequences), 42));
        await back();
        const result = await learner.forwardBackward(sequences, loss);
        const taken = await learner.optimStep(ordinary);
        const expected = await learner.forward(sequences, {});
        await back();
        const both = await learner.trainStep(sequences, loss, ordinary);
        assert.deepEqual([both.result.loss, both.result.metrics], [result.loss, result.metrics]);
        assertClose(both.result.outputs.logprobs, result.outputs.logprobs, helpers.tolerance, "outputs");
        assertRatio(both.step.gradNorm, taken.gradNorm, 1e-4, "the norm");
        assert.equal(both.step.applied, true);
        assertClose(
          (await learner.forward(sequences, {})).logprobs,
          expected.logprobs,
          helpers.tolerance,
          "weights after the step",
        );
      }),
  },
  {
    name: "zeroGrad and optimStep clear the gradient; a step without one moves nothing",
    check: (engine, helpers) =>
      atOnePoint(engine, helpers, async (learner) => {
        const sequences = madeUpSequences(engine, 7);
        const before = await learner.forward(sequences, {});
        await learner.forwardBackward(sequences, linearLoss(sequences, madeUpWeights(numTrained(sequences), 51)));
        await learner.zeroGrad();
        assert.equal((await learner.optimStep(plainDescent(0.1))).gradNorm, 0);
        assert.deepEqual((await learner.forward(sequences, {})).logprobs, before.logprobs);
        assert.ok(
          (await step(learner, sequences, madeUpWeights(numTrained(sequences), 51), plainDescent(0))).gradNorm > 0,
        );
        assert.equal((await learner.optimStep(plainDescent(0.1))).gradNorm, 0);
      }),
  },
  {
    name: "clipping scales the step and reports the norm from before it",
    check: (engine, helpers) =>
      atOnePoint(engine, helpers, async (learner, back) => {
        const sequences = madeUpSequences(engine, 8);
        const weights = madeUpWeights(numTrained(sequences), 61);
        const before = await learner.forward(sequences, {});
        const whole = await step(learner, sequences, weights, plainDescent(0));
        const rate = stepLength / whole.gradNorm;
        await back();
        const half = await step(learner, sequences, weights, plainDescent(rate / 2));
        const halfway = await learner.forward(sequences, {});
        await back();
        const clipped = await step(learner, sequences, weights, {
          ...plainDescent(rate),
          maxGradNorm: whole.gradNorm / 2,
        });
        assertRatio(clipped.gradNorm, half.gradNorm, 1e-4, "the norm");
        assertClose(
          (await learner.forward(sequences, {})).logprobs,
          halfway.logprobs,
          helpers.tolerance,
          "clipped to half",
        );
        assertDiffer(before.logprobs, halfway.logprobs, helpers.tolerance * 10, "the step");
      }),
  },
  {
    name: "a gradient that is not finite is dropped and does not change the next step",
    check: (engine, helpers) =>
      atOnePoint(engine, helpers, async (learner, back) => {
        const sequences = madeUpSequences(engine, 9);
        const weights = madeUpWeights(numTrained(sequences), 71);
        await back();
        await step(learner, sequences, weights, ordinary);
        const expected = await learner.forward(sequences, {});
        await back();
        const overflow = await step(learner, sequences, scaled(weights, 3e38));
        assert.deepEqual([overflow.applied, Number.isFinite(overflow.gradNorm)], [false, false]);
        const loss = linearLoss(sequences, weights);
        const nan = learner.forwardBackward(sequences, {
          ...loss,
          evaluate: (...given) => ({ ...loss.evaluate(...given), loss: Number.NaN }),
        });
        await assert.rejects(nan, NonFiniteLossError);
        await learner.zeroGrad();
        assert.equal((await step(learner, sequences, weights, ordinary)).applied, true);
        assertClose(
          (await learner.forward(sequences, {})).logprobs,
          expected.logprobs,
          helpers.tolerance,
          "the next step",
        );
      }),
  },
];
