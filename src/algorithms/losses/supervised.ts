/** The reductions of `hone sft` and the losses of `hone dpo`, by their names in the configuration. */

/** What a token's weight is divided by. An example is a row, which may be several sequences. */
export const reductions = {
  /** Every token of the batch counts the same (TRL, verl). */
  "token-mean": ({ batch }) => batch,
  /** rLLM on Tinker. */
  "token-sum": () => 1,
  /** Every example counts the same. */
  "example-mean": ({ example, examples }) => example * examples,
  /** The Tinker cookbook's: not divided by the number of examples. */
  "example-mean-sum": ({ example }) => example,
} as const satisfies Record<string, (sums: WeightSums) => number>;

/** Sums of weights: of the batch and of the token's example; and the number of examples with a trained token. */
interface WeightSums {
  batch: number;
  example: number;
  examples: number;
}

export interface PreferenceConstants {
  beta: number;
  /** The probability that a pair's label is wrong. */
  smoothing: number;
}

export interface PreferenceLoss {
  /** Replies are compared by the means over their tokens instead of the sums. */
  byMean?: true;
  /** @param difference of the log-ratios to the reference, chosen minus rejected @returns the loss and its derivative */
  evaluate(difference: number, constants: PreferenceConstants): [loss: number, slope: number];
}

/** `log(sigmoid(x))`, without overflow. */
const logSigmoid = (x: number) => Math.min(x, 0) - Math.log1p(Math.exp(-Math.abs(x)));
const sigmoid = (x: number) => Math.exp(logSigmoid(x));

/** The losses under TRL's names. */
export const preferenceLosses = {
  /** arXiv 2305.18290 */
  sigmoid: { evaluate: (d, { beta }) => [-logSigmoid(beta * d), -beta * sigmoid(-beta * d)] },
  /** arXiv 2403.00409 */
  robust: {
    evaluate: (d, { beta, smoothing: e }) => [
      (-(1 - e) * logSigmoid(beta * d) + e * logSigmoid(-beta * d)) / (1 - 2 * e),
      (-beta * ((1 - e) * sigmoid(-beta * d) + e * sigmoid(beta * d))) / (1 - 2 * e),
    ],
  },
  /** arXiv 2310.12036 */
  ipo: {
    byMean: true,
    evaluate: (d, { beta }) => [(d - 1 / (2 * beta)) ** 2, 2 * (d - 1 / (2 * beta))],
  },
  /** arXiv 2305.10425 */
  hinge: { evaluate: (d, { beta }) => (beta * d < 1 ? [1 - beta * d, -beta] : [0, 0]) },
  /** `sigmoid` of the means over tokens. */
  sigmoid_norm: {
    byMean: true,
    evaluate: (d, { beta }) => [-logSigmoid(beta * d), -beta * sigmoid(-beta * d)],
  },
} as const satisfies Record<string, PreferenceLoss>;
