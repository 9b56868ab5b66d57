/** What a policy loss says of one token. How tokens become one figure is `aggregation.ts`'s business. */

export interface RatioBounds {
  /** The ratio is clipped below at this (1 - epsilon). */
  low: number;
  /** The ratio is clipped above at this (1 + epsilon). */
  high: number;
  /** Caps the loss of a negative advantage at `-cap * A`; above 1; `null` is off. */
  dual: number | null;
  /** The log-ratio is held within +-limit before it is exponentiated, without gradient beyond. */
  logRatioLimit: number;
}

export interface TokenLossValue {
  loss: number;
  /** Derivative of the loss by the log-probability. */
  slope: number;
  /** The clipped branch is the larger one. */
  clipped: boolean;
  /** The dual clip's cap is active. */
  capped: boolean;
}

/** @param logRatio `lp - old`, the log of the probability ratio */
export type TokenLoss = (logRatio: number, advantage: number, bounds: RatioBounds) => TokenLossValue;

/** The ratio `e^d` and its derivative by `d`, with `d` held within the limit. */
export function boundedRatio(logRatio: number, limit: number): { ratio: number; slope: number } {
  const ratio = Math.exp(Math.min(Math.max(logRatio, -limit), limit));
  return { ratio, slope: Math.abs(logRatio) <= limit ? ratio : 0 };
}
