/** Estimators of the KL to a reference policy, from one sampled token (http://joschu.net/blog/kl-approx.html). */

export interface KlValue {
  value: number;
  /** Derivative with respect to the current log-probability. */
  slope: number;
}

/** verl's bounds of the argument and the value of k3. */
const maxLogRatio = 20;
const maxK3 = 10;

/** `logRatio` is `lp - reference`. */
export const klEstimators = {
  /** Unbiased, but as a loss term its expected gradient is zero. */
  k1: (logRatio) => ({ value: logRatio, slope: 1 }),
  k2: (logRatio) => ({ value: logRatio ** 2 / 2, slope: logRatio }),
  k3: (logRatio) => {
    const opposite = Math.min(Math.max(-logRatio, -maxLogRatio), maxLogRatio);
    const growth = Math.expm1(opposite);
    const value = growth - opposite;
    const bounded = Math.abs(logRatio) > maxLogRatio || value > maxK3;
    return { value: Math.min(value, maxK3), slope: bounded ? 0 : -growth };
  },
  abs: (logRatio) => ({ value: Math.abs(logRatio), slope: Math.sign(logRatio) }),
} as const satisfies Record<string, (logRatio: number) => KlValue>;

export type KlEstimatorName = keyof typeof klEstimators;

/** A KL to the reference policy, in the loss or in the rewards. */
export interface KlTerm {
  weight: number;
  estimator: KlEstimatorName;
}
