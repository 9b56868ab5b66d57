/** What a policy loss is. How sequences become one figure is `aggregation.ts`'s business. */

type Floats = Float32Array | Float64Array;

/**
 * One sequence's trained tokens as a loss sees them: places within arrays of the whole batch, because copies would cost
 * more than most losses. Token `t` of the sequence is `logprobs[at + t]`, `old[oldAt + t]`, `advantages[from + t]`.
 */
export interface LossRow {
  /** Tokens of the sequence. */
  count: number;
  /** Where the sequence begins in `logprobs`, `slopes` and `marked`. */
  at: number;
  /** Where it begins in `old`. */
  oldAt: number;
  /** Where it begins in `advantages`. */
  from: number;
  /** Where it begins in `weights`. */
  weightsAt: number;
  /** Log-probability under the current policy: what the loss is differentiated by. */
  logprobs: Floats;
  /** Log-probability under the policy that ratios start from; `logprobs` themselves where that is the current one. */
  old: Floats;
  advantages: Floats;
  /** Of each token's loss, beside `weight`; `null`: 1. */
  weights: Floats | null;
  /** Of every token's loss. */
  weight: number;
  /** 1: chosen by the loss's `mark`, which saw the whole batch; `null` for losses that have none. */
  marked: Uint8Array | null;
  /** To be written: derivative of the sequence's weighted loss by each log-probability. */
  slopes: Floats;
  /** To be written: tokens whose clipped branch is the one that counts. */
  clipped: number;
  /** To be written: tokens held by the dual clip's cap. */
  capped: number;
  /** To be written: sum of `old - lp` over the tokens, an estimate of KL(old || current), or the loss's own figure. */
  kl: number;
}

/** Constants of all losses; each reads those that its formula has. */
export interface LossSettings {
  /** The ratio is clipped below at this (1 - epsilon). */
  low: number;
  /** The ratio is clipped above at this (1 + epsilon). */
  high: number;
  /** ppo: caps the loss of a negative advantage at `-dual * A`; above 1; Infinity is off. */
  dual: number;
  /** Log-ratios are held within +-limit before they are exponentiated, without gradient beyond. */
  logRatioLimit: number;
  /** dro: weight of the squared distance to the old log-probability. */
  droBeta: number;
  /** sapo: temperature of positive advantages. */
  tauPositive: number;
  /** sapo: temperature of negative advantages. */
  tauNegative: number;
  /** cpgd: weight of the KL to the old policy. */
  cpgdDrift: number;
  /** clip_cov: share of the batch's tokens that lose their gradient, and the covariances among which they are drawn. */
  clipCovRatio: number;
  clipCovLow: number;
  clipCovHigh: number;
  /** kl_cov: share of the batch's tokens (those of largest covariance) that are penalised, and how much. */
  klCovRatio: number;
  klCovCoef: number;
  /** gspo: `sequence` differentiates through the mean of the log-ratios, `token` (verl's form) does not. */
  gspoGradient: "token" | "sequence";
  /** Of the random choices of this evaluation. */
  seed: number;
}

/** Constants of the papers or, where those leave them open, of the implementations in use. */
export const lossDefaults = {
  low: 0.8,
  high: 1.2,
  dual: Number.POSITIVE_INFINITY,
  // As verl: a ratio beyond e^20 says that something is broken, not how much.
  logRatioLimit: 20,
  droBeta: 0.05,
  tauPositive: 1,
  tauNegative: 1.05,
  cpgdDrift: 0,
  clipCovRatio: 2e-4,
  clipCovLow: 1,
  clipCovHigh: 5,
  klCovRatio: 2e-4,
  klCovCoef: 0.1,
  gspoGradient: "token",
  seed: 0,
} as const satisfies LossSettings;

/** Writes what a row asks for, and answers with the sequence's weighted loss. */
export type SequenceLoss = (row: LossRow, settings: LossSettings) => number;

/** All tokens of a batch at once, for losses that choose among them; `[N]` each. */
export interface BatchTokens {
  logprobs: ArrayLike<number>;
  /** Log-probabilities that ratios start from. */
  old: ArrayLike<number>;
  advantages: ArrayLike<number>;
}

export interface PolicyLossDefinition {
  evaluate: SequenceLoss;
  /** A token's loss depends on the others of its sequence. Of the other losses a row may be of several sequences. */
  couplesTokens?: true;
  /** Such a loss needs the outputs of the whole batch: `[N]` of marks, handed to `evaluate` row by row. */
  mark?: (tokens: BatchTokens, settings: LossSettings) => Uint8Array;
  /** Whether a token with advantage 0 may have a gradient. */
  trainsWithoutAdvantage?: (settings: LossSettings) => boolean;
  /** How its authors aggregate; for the others it is token-mean. */
  aggMode?: "seq-mean-token-mean";
}

/** By comparisons, which a processor foresees where hardly anything is out of bounds. What is no number stays none. */
export const clamp = (value: number, low: number, high: number): number =>
  value > high ? high : value < low ? low : value;
