/** Losses whose formula is of each token by itself. */
import { compile, type Kernel } from "../kernels/kernel.ts";
import { type Condition, input, type Lanes, setting } from "../kernels/lanes.ts";
import type { Precision } from "../kernels/wasm.ts";
import { type LossSettings, lossDefaults, type SequenceLoss } from "./sequence-loss.ts";

export interface TokenFigures {
  /** Log-probability under the current policy. */
  logprob: Lanes;
  /** That less the old one. */
  logRatio: Lanes;
  advantage: Lanes;
  /** Holds for tokens that the loss's `mark` chose. */
  marked: Condition;
}

export interface TokenValue {
  /** Without its weight, as `slope`. */
  loss: Lanes;
  /** Derivative of the loss by the log-probability. */
  slope: Lanes;
  /** See `LossRow`. */
  kl: Lanes;
  clipped?: Condition;
  /** Only beside `clipped`. */
  capped?: Condition;
}

type LossFigures = Readonly<Record<Exclude<keyof LossSettings, "gspoGradient" | "seed"> | "logLow" | "logHigh", Lanes>>;
const { gspoGradient: _, seed: __, ...numbers } = lossDefaults;
/** The clip's bounds also as bounds of the log-ratio. */
const settings = Object.fromEntries(
  [...Object.keys(numbers), "logLow", "logHigh"].map((name) => [name, setting(name)]),
) as LossFigures;

/** The formula's loss and slopes, times the weights of the row. It is compiled when it is first used. */
export function tokenLoss(formula: (token: TokenFigures, settings: LossFigures) => TokenValue): SequenceLoss {
  const kernels = new Map<string, Kernel>();
  let settled: LossSettings | null = null;
  let given: Record<string, number> = {};
  return (row, own) => {
    const { count, at, logprobs, old, advantages, weights, marked, slopes } = row;
    const precision = [logprobs, old, slopes].some((values) => values instanceof Float64Array) ? "float64" : "float32";
    const key = `${precision} ${weights === null ? "" : "weighted"}`;
    const kernel = kernels.get(key) ?? compileLoss(formula, precision, weights !== null);
    kernels.set(key, kernel);
    const spans = {
      logprobs: { values: logprobs, from: at },
      old: { values: old, from: row.oldAt },
      advantages: { values: advantages, from: row.from },
      weights: weights && { values: weights, from: row.weightsAt },
      marked: marked && { values: marked, from: at },
    };
    if (own !== settled) {
      settled = own;
      const { gspoGradient, ...figures } = own;
      given = { ...figures, logLow: Math.log(Math.max(own.low, 0)), logHigh: Math.log(own.high) };
    }
    given.weight = row.weight;
    const [loss, kl, clipped = 0, capped = 0] = kernel.run(count, spans, given, { values: slopes, from: at });
    row.kl = kl!;
    row.clipped = clipped;
    row.capped = capped;
    return loss!;
  };
}

function compileLoss(formula: Parameters<typeof tokenLoss>[0], precision: Precision, weighted: boolean): Kernel {
  const logprob = input("logprobs");
  const token = {
    ...{ logprob, logRatio: logprob.minus(input("old")), advantage: input("advantages") },
    marked: input("marked").equals(1),
  };
  const { loss, slope, kl, clipped, capped } = formula(token, settings);
  const weight = weighted ? setting("weight").times(input("weights")) : setting("weight");
  const counts = [clipped, capped].filter((condition) => condition !== undefined);
  return compile({ output: slope.times(weight), sums: [loss.times(weight), kl], counts }, precision);
}
