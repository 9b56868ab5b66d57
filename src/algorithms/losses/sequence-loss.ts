/** A policy loss maps the trained tokens of one sequence to a value and a slope per token. */

type Floats = Float32Array | Float64Array;

/** The trained tokens of one sequence, `[T]` each. */
export interface SequenceTokens {
  /** Log-probability under the current policy (nats); the loss is differentiated by it. */
  logprobs: Floats;
  /** Log-probability under the policy that ratios start from; `logprobs` itself if that is the current one. */
  old: Floats;
  advantages: Floats;
  /** 1: the loss's `mark` selected this token. Only losses with a `mark` read it. */
  marked?: Uint8Array;
}

/** The loss of one sequence. The caller applies the weight of each token. */
export interface LossValues {
  /** `[T]` loss of each token. */
  losses: Float64Array;
  /** `[T]` derivative of the sum of `losses` by each log-probability. */
  slopes: Float64Array;
  /** The slopes are derivatives with respect to the mean log-ratio: every token gets their weighted mean. */
  slopesOfMean?: true;
  /** Tokens whose clipped branch was selected. */
  clipped: number;
  /** Tokens held by a second bound (ppo's dual clip). */
  capped: number;
  /** Sum of `old - lp` over the tokens, an estimate of KL(old || current), or the loss's own measure. */
  kl: number;
}

export const emptyValues = ({ logprobs }: SequenceTokens): LossValues => ({
  losses: new Float64Array(logprobs.length),
  slopes: new Float64Array(logprobs.length),
  clipped: 0,
  capped: 0,
  kl: 0,
});

export function eachToken(
  { logprobs, old, advantages }: SequenceTokens,
  visit: (t: number, logprob: number, old: number, advantage: number) => void,
): void {
  for (let t = 0; t < logprobs.length; t++) visit(t, logprobs[t]!, old[t]!, advantages[t]!);
}

/** Constants of all losses; each loss reads those in its formula. */
export interface LossSettings {
  /** Lower clip bound of the ratio (1 - epsilon). */
  low: number;
  /** Upper clip bound of the ratio (1 + epsilon). */
  high: number;
  /** ppo: caps the loss of a negative advantage at `-dual * A`; above 1; Infinity turns it off. */
  dual: number;
  /** Log-ratios are clamped to +-limit before the exponential; the gradient is zero outside. */
  logRatioLimit: number;
  /** dro: weight of the squared distance to the old log-probability. */
  droBeta: number;
  /** sapo: temperature of positive advantages. */
  tauPositive: number;
  /** sapo: temperature of negative advantages. */
  tauNegative: number;
  /** cpgd: weight of the KL to the old policy. */
  cpgdDrift: number;
  /** clip_cov: share of the batch's tokens that lose their gradient, drawn from covariances between the two bounds. */
  clipCovRatio: number;
  clipCovLow: number;
  clipCovHigh: number;
  /** kl_cov: share of the batch's tokens (those of largest covariance) that are penalized, and the penalty's weight. */
  klCovRatio: number;
  klCovCoef: number;
  /** gspo: `sequence` differentiates through the mean of the log-ratios, `token` (verl's form) does not. */
  gspoGradient: "token" | "sequence";
  /** Seed of the random choices of this evaluation. */
  seed: number;
}

/** Constants of the papers or, where a paper gives none, of the implementations in use. */
export const lossDefaults = {
  low: 0.8,
  high: 1.2,
  dual: Number.POSITIVE_INFINITY,
  // verl's value.
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

export type SequenceLoss = (tokens: SequenceTokens, settings: LossSettings) => LossValues;

/** The tokens of a batch that are trained by one loss, `[N]` each, for losses that select some of them. */
export interface BatchTokens {
  logprobs: Float64Array;
  /** Log-probabilities that ratios start from. */
  old: Float64Array;
  advantages: Float64Array;
}

export interface PolicyLossDefinition {
  evaluate: SequenceLoss;
  /** Selects tokens from the outputs of the whole batch: `[N]` marks, passed to `evaluate` as `marked`. */
  mark?: (tokens: BatchTokens, settings: LossSettings) => Uint8Array;
  /** Whether a token with advantage 0 can have a gradient. */
  trainsWithoutAdvantage?: (settings: LossSettings) => boolean;
  /** The authors' aggregation; the default is token-mean. */
  aggMode?: "seq-mean-token-mean";
}

/** NaN stays NaN. */
export const clamp = (value: number, low: number, high: number): number =>
  value > high ? high : value < low ? low : value;
