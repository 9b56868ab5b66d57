/** Centers and scales the advantages of a batch's tokens. */

export interface WhiteningOptions {
  /** 0: population variance; 1: sample variance. */
  ddof: 0 | 1;
  eps: number;
  /** Where `eps` is used: added to the variance, added to the deviation, or as the smallest variance. */
  epsAt: "variance" | "deviation" | "floor";
  /** Added to the number of values that sums are divided by. */
  countEps?: number;
  /** `false`: only center. */
  scale?: boolean;
}

/** The constants that each system uses. */
export const whitenings = {
  /** verl's `masked_whiten`, after reinforce_plus_plus, reinforce_plus_plus_baseline and gae. */
  verl: { ddof: 1, eps: 1e-8, epsAt: "variance", countEps: 1e-8 },
  /** LightRFT's `advantages_norm`. */
  lightrft: { ddof: 1, eps: 1e-8, epsAt: "deviation" },
  lightrftGae: { ddof: 1, eps: 1e-9, epsAt: "deviation" },
  /** LightRFT over all experiences of a rollout. */
  lightrftBatch: { ddof: 0, eps: 1e-8, epsAt: "floor" },
} as const satisfies Record<string, WhiteningOptions>;

/** `(value - center) * factor` whitens. Fewer than two values, or equal values, become 0. */
export interface Whitening {
  center: number;
  factor: number;
}

export function whiteningOf(
  values: readonly number[] | Float32Array | Float64Array,
  options: WhiteningOptions,
): Whitening {
  const { ddof, eps, epsAt, countEps = 0, scale = true } = options;
  const count = values.length;
  const [first] = values;
  if (first === undefined) return { center: 0, factor: 0 };
  let sum = 0;
  for (const value of values) sum += value;
  const center = sum / (count + countEps);
  const equal = values.every((value) => value === first);
  if (!scale) return { center: equal ? first : center, factor: 1 };
  if (equal) return { center, factor: 0 };
  let squares = 0;
  for (const value of values) squares += (value - center) ** 2;
  const variance = ((squares / (count + countEps)) * count) / (count - ddof);
  const divisors = {
    variance: Math.sqrt(variance + eps),
    deviation: Math.sqrt(variance) + eps,
    floor: Math.sqrt(Math.max(variance, eps)),
  };
  return { center, factor: 1 / divisors[epsAt] };
}
