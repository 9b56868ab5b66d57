/** Custom policy losses: a name, the inputs they read, and a function that returns values and slopes. */
import { RunError } from "../base/errors.ts";

/** Inputs that a custom loss may read of each token, in addition to its log-probability. */
export type LossInput = "advantage" | "logRatio" | "oldLogprob" | "samplerLogprob" | "referenceLogprob" | "entropy";

/** Each declared input of one token, or of all trained tokens of a sequence. */
type Inputs<Names extends LossInput, Value> = Readonly<Record<Names | "logprob", Value>>;

/** A policy loss of your own, made by `tokenLoss` or `sequenceLoss`. */
export interface CustomLoss {
  readonly name: string;
  readonly inputs: readonly LossInput[];
  /** `[T]` losses and slopes from the declared inputs, `[T]` each. */
  evaluate(inputs: CustomInputs): TokenValues;
}

type CustomInputs = Readonly<Record<"logprob", Float64Array> & Partial<Record<LossInput, Float64Array>>>;

interface TokenValues {
  losses: ArrayLike<number>;
  slopes: ArrayLike<number>;
}

/**
 * A loss of single tokens: its value and its derivative with respect to the token's log-probability. Tokens are aggregated
 * by `loss_agg_mode`; the KL term, the entropy bonus and off-policy weights are added as with any other loss.
 *
 * @example
 * const reinforce = tokenLoss("my_reinforce", ["advantage"], ({ logprob, advantage }) => ({
 *   loss: -logprob * advantage,
 *   slope: -advantage,
 * }));
 */
export function tokenLoss<Names extends LossInput>(
  name: string,
  inputs: readonly Names[],
  evaluate: (token: Inputs<Names, number>) => { loss: number; slope: number },
): CustomLoss {
  const names = [...inputs, "logprob"] as const;
  const token = Object.fromEntries(names.map((input) => [input, 0])) as Record<Names | "logprob", number>;
  return {
    name,
    inputs,
    evaluate: (given) => {
      const losses = new Float64Array(given.logprob.length);
      const slopes = new Float64Array(given.logprob.length);
      for (let index = 0; index < losses.length; index++) {
        for (const input of names) token[input] = given[input]![index]!;
        const value = evaluate(token);
        losses[index] = value.loss;
        slopes[index] = value.slope;
      }
      return { losses, slopes };
    },
  };
}

/**
 * A loss of whole sequences: `[T]` losses, one per trained token, and `[T]` derivatives of their sum with respect to
 * each token's log-probability.
 *
 * @throws RunError if the returned arrays have another length
 * @example
 * const total = sequenceLoss("sum_squared", [], ({ logprob }) => {
 *   const sum = logprob.reduce((total, value) => total + value, 0);
 *   return { losses: logprob.map(() => sum ** 2 / logprob.length), slopes: logprob.map(() => 2 * sum) };
 * });
 */
export function sequenceLoss<Names extends LossInput>(
  name: string,
  inputs: readonly Names[],
  evaluate: (tokens: Inputs<Names, Float64Array>) => TokenValues,
): CustomLoss {
  return {
    name,
    inputs,
    evaluate: (given) => {
      const values = evaluate(given as Inputs<Names, Float64Array>);
      for (const { length } of [values.losses, values.slopes]) {
        if (length === given.logprob.length) continue;
        throw new RunError(`the loss "${name}" returned ${length} values for ${given.logprob.length} trained tokens`);
      }
      return values;
    },
  };
}
