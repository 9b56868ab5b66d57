/** Estimators of the KL to a reference policy, from one sampled token (http://joschu.net/blog/kl-approx.html). */
import { exp } from "./losses/exp.ts";

export interface KlValue {
  value: number;
  /** Derivative by the current log-probability. */
  slope: number;
}

/** Where k3 stops growing: its argument and its value, as verl bounds them. */
const maxLogRatio = 20;
const maxK3 = 10;

/** @param logRatio `lp - reference` */
export type KlEstimator = (logRatio: number) => KlValue;

export const klEstimators = {
  /** Unbiased, but of no use as a loss term: its expected gradient is zero. */
  k1: (logRatio) => ({ value: logRatio, slope: 1 }),
  k2: (logRatio) => ({ value: logRatio ** 2 / 2, slope: logRatio }),
  k3: (logRatio) => {
    const opposite = Math.min(Math.max(-logRatio, -maxLogRatio), maxLogRatio);
    const growth = exp(opposite) - 1;
    const value = growth - opposite;
    const bounded = Math.abs(logRatio) > maxLogRatio || value > maxK3;
    return { value: Math.min(value, maxK3), slope: bounded ? 0 : -growth };
  },
  abs: (logRatio) => ({ value: Math.abs(logRatio), slope: Math.sign(logRatio) }),
} as const satisfies Record<string, KlEstimator>;

export type KlEstimatorName = keyof typeof klEstimators;
