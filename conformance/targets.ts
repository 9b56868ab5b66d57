/** Checks that outputs of chosen tokens equal those of sequences that continue with these tokens. */
import assert from "node:assert/strict";
import type { Engine, Learner } from "../src/backends/engine.ts";
import type { Sequence } from "../src/trajectories/types.ts";
import {
  assertClose,
  assertRatio,
  type ConformanceCheck,
  linearLoss,
  lora,
  madeUpSequences,
  madeUpTokens,
  madeUpWeights,
  numTrained,
  plainDescent,
  step,
  withLearner,
} from "./tools.ts";

/** Sequences with several targets at some places, and each target as a sequence that ends with it. */
function chosenTargets(engine: Engine): { sequences: Sequence[]; spelledOut: Sequence[] } {
  const sequences: Sequence[] = [
    { tokens: madeUpTokens(engine, 1, 6), trained: Uint8Array.of(1, 0, 3, 0, 2), targets: madeUpTokens(engine, 2, 6) },
    { tokens: madeUpTokens(engine, 3, 4), trained: new Uint8Array(3), targets: new Int32Array(0) },
    { tokens: madeUpTokens(engine, 1, 6), trained: Uint8Array.of(0, 0, 1, 1, 1), targets: madeUpTokens(engine, 4, 3) },
  ];
  const spelledOut = sequences.flatMap(({ tokens, trained, targets }) => {
    let next = 0;
    return Array.from(trained).flatMap((count, place) =>
      Array.from({ length: count }, () => ({
        tokens: Int32Array.of(...tokens.subarray(0, place + 1), targets![next++]!),
        trained: Uint8Array.from({ length: place + 1 }, (_, index) => Number(index === place)),
      })),
    );
  });
  return { sequences, spelledOut };
}

/** Runs `use` with a learner whose adapter changes the outputs. */
const moved = (engine: Engine, use: (learner: Learner) => Promise<void>): Promise<void> =>
  withLearner(engine, { adapter: lora() }, async (learner) => {
    const sequences = madeUpSequences(engine, 2);
    for (const seed of [1, 2]) await step(learner, sequences, madeUpWeights(numTrained(sequences), seed));
    await use(learner);
  });

/** Each place of a sequence once. */
export const everywhere = (tokens: Int32Array): Sequence => ({
  tokens,
  trained: new Uint8Array(tokens.length - 1).fill(1),
});

export const targetChecks: ConformanceCheck[] = [
  {
    name: "outputs of chosen tokens are those of sequences that continue with them, gradients too",
    needs: ({ outputs }) => outputs.includes("targets"),
    check: (engine, { path, tolerance }) =>
      moved(engine, async (learner) => {
        const { sequences, spelledOut } = chosenTargets(engine);
        const chosen = await learner.forward(sequences, {});
        assert.deepEqual([...chosen.offsets], [0, 6, 6, 9]);
        assertClose(chosen.logprobs, (await learner.forward(spelledOut, {})).logprobs, tolerance, "log-probabilities");
        const point = path("point");
        await learner.saveState(point);
        const weights = madeUpWeights(numTrained(sequences), 5);
        const expected = await step(learner, spelledOut, weights, plainDescent(0));
        const rate = 0.005 / expected.gradNorm;
        await step(learner, spelledOut, weights, plainDescent(rate));
        const after = await learner.forward(spelledOut, {});
        await learner.loadState(point, { optimizer: false });
        const { outputs } = await learner.forwardBackward(sequences, linearLoss(sequences, weights));
        assertClose(outputs.logprobs, chosen.logprobs, tolerance, "outputs of the backward");
        assertRatio((await learner.optimStep(plainDescent(rate))).gradNorm, expected.gradNorm, 1e-4, "the gradient");
        assertClose(
          (await learner.forward(spelledOut, {})).logprobs,
          after.logprobs,
          tolerance,
          "weights after a step",
        );
      }),
  },
  {
    name: "the likeliest tokens at each place are sorted and have forward's log-probabilities",
    needs: ({ outputs }) => outputs.includes("targets") && outputs.includes("most_likely"),
    check: (engine, { tolerance }) =>
      moved(engine, async (learner) => {
        const sequence = everywhere(madeUpTokens(engine, 6, 7));
        const { tokens, logprobs, count } = await learner.mostLikely!([sequence], 3);
        assert.deepEqual([count, tokens.length], [3, 18]);
        const asked = { ...sequence, trained: new Uint8Array(6).fill(3), targets: tokens };
        assertClose(logprobs, (await learner.forward([asked], {})).logprobs, tolerance, "log-probabilities");
        for (let row = 0; row < 6; row++) {
          const own = [...logprobs.subarray(3 * row, 3 * row + 3)];
          assert.deepEqual(
            [...own].sort((left, right) => right - left),
            own,
            "most likely first",
          );
        }
        const greedy = await learner.draws?.([sequence], { count: 1, temperature: 0, seed: 1 });
        if (greedy) assert.ok(logprobs[15]! - greedy.logprobs[5]! <= tolerance, "the greedy choice is the likeliest");
      }),
  },
  {
    name: "tokens drawn at each place follow the tempered distribution and have forward's log-probabilities",
    needs: ({ outputs }) => outputs.includes("targets") && outputs.includes("draws"),
    check: (engine, { tolerance }) =>
      moved(engine, async (learner) => {
        const sequence = everywhere(madeUpTokens(engine, 8, 4));
        const draw = (temperature: number, seed: number) =>
          learner.draws!([sequence], { count: 200, temperature, seed });
        const { tokens, logprobs, count } = await draw(1, 1);
        assert.deepEqual([count, tokens.length], [200, 600]);
        const asked = { ...sequence, trained: new Uint8Array(3).fill(200), targets: tokens };
        assertClose(logprobs, (await learner.forward([asked], {})).logprobs, tolerance, "log-probabilities");
        assert.deepEqual((await draw(1, 1)).tokens, tokens, "the same seed draws the same");
        assert.notDeepEqual((await draw(1, 2)).tokens, tokens);
        const greedy = await draw(0, 1);
        const top = await learner.mostLikely!([sequence], 1);
        assertClose(
          Float32Array.from([0, 200, 400], (index) => greedy.logprobs[index]!),
          top.logprobs,
          tolerance,
          "temperature 0 takes the likeliest",
        );
        const mean = (values: Float32Array) => values.reduce((sum, value) => sum + value, 0) / values.length;
        const [cold, hot] = [await draw(0.2, 1), await draw(5, 1)];
        assert.ok(mean(cold.logprobs) > mean(logprobs) && mean(logprobs) > mean(hot.logprobs), "temperatures differ");
      }),
  },
];
