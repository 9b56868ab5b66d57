/** Estimators of the KL to a reference policy, from one sampled token (http://joschu.net/blog/kl-approx.html). */
import { compile, type Kernel, type Span } from "./kernels/kernel.ts";
import { constant, input, type Lanes, setting } from "./kernels/lanes.ts";

/** Where k3 stops growing: its argument and its value, as verl bounds them. */
const maxLogRatio = 20;
const maxK3 = 10;

/** Of `lp - reference`; the slope is the derivative by `lp`. */
const estimators = {
  /** Unbiased, but of no use as a loss term: its expected gradient is zero. */
  k1: (logRatio) => ({ value: logRatio, slope: constant(1) }),
  k2: (logRatio) => ({ value: logRatio.times(logRatio).times(0.5), slope: logRatio }),
  k3: (logRatio) => {
    const opposite = logRatio.negated().clamp(-maxLogRatio, maxLogRatio);
    const growth = opposite.expm1();
    const value = growth.minus(opposite);
    const bounded = logRatio.abs().above(maxLogRatio).or(value.above(maxK3));
    return { value: value.above(maxK3).choose(maxK3, value), slope: bounded.choose(0, growth.negated()) };
  },
  abs: (logRatio) => ({ value: logRatio.abs(), slope: logRatio.sign() }),
} as const satisfies Record<string, (logRatio: Lanes) => { value: Lanes; slope: Lanes }>;

export type KlEstimatorName = keyof typeof estimators;
export const klEstimatorNames = Object.keys(estimators) as KlEstimatorName[];

const compiled = new Map<string, { values: Kernel; slopes: Kernel }>();

function kernelsOf(estimator: KlEstimatorName, logprobs: Span["values"]): { values: Kernel; slopes: Kernel } {
  const precision = logprobs instanceof Float64Array ? "float64" : "float32";
  const key = `${estimator} ${precision}`;
  const known = compiled.get(key);
  if (known !== undefined) return known;
  const { value, slope } = estimators[estimator](input("logprobs").minus(input("reference")));
  const moved = input("slopes").plus(setting("weight").times(slope));
  const kernels = {
    values: compile({ output: value, sums: [], counts: [] }, precision),
    slopes: compile({ output: moved, sums: [value], counts: [] }, precision),
  };
  compiled.set(key, kernels);
  return kernels;
}

/**
 * @param logprobs `[N]`
 * @param reference `[N]`
 * @returns `[N]`
 */
export function klOf<F extends Float32Array | Float64Array>(estimator: KlEstimatorName, logprobs: F, reference: F): F {
  const values = logprobs.slice() as F;
  const inputs = { logprobs: { values: logprobs, from: 0 }, reference: { values: reference, from: 0 } };
  kernelsOf(estimator, logprobs).values.run(values.length, inputs, {}, { values, from: 0 });
  return values;
}

/** Adds the derivative of `weight * KL` by each of `count` log-probabilities to `slopes`, and answers with the sum of the KL. */
export function addKl(
  estimator: KlEstimatorName,
  count: number,
  spans: { logprobs: Span; reference: Span; slopes: Span },
  weight: number,
): number {
  return kernelsOf(estimator, spans.logprobs.values).slopes.run(count, spans, { weight }, spans.slopes)[0]!;
}
