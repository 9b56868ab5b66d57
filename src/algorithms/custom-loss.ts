/** Policy losses of a user's own: what they read is declared, what they give is a value and a slope. */
import { RunError } from "../errors.ts";

/** What a custom loss may read of each token besides the log-probability that it is differentiated by. */
export type LossInput = "advantage" | "logRatio" | "oldLogprob" | "samplerLogprob" | "referenceLogprob" | "entropy";

/** Each declared input of one token, or of all trained tokens of a sequence. */
type Inputs<Names extends LossInput, Value> = Readonly<Record<Names | "logprob", Value>>;

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
 * A loss of single tokens: its value and its derivative by the token's log-probability. Tokens are aggregated by
 * `loss_agg_mode`; KL, entropy bonus and off-policy weights come on top as with any other loss.
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
 * A loss of whole sequences: `[T]` losses, one for each trained token, and `[T]` derivatives of their sum by each
 * token's log-probability.
 *
 * @throws RunError when the arrays returned have another length
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
        throw new RunError(`the loss "${name}" gave ${length} figures for ${given.logprob.length} trained tokens`);
      }
      return values;
    },
  };
}
