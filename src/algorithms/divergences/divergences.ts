/**
 * Divergences between student and teacher over some tokens of one position: the teacher's most likely ones, or others. The
 * rest of both distributions is ignored, counted as one more token (a tail), or removed by renormalizing.
 */

/** One position, `[K]` each: log-probabilities of the compared tokens under both models. */
export interface Compared {
  student: Float64Array;
  teacher: Float64Array;
}

export interface DivergenceOptions {
  /** `jsd`: 0 is KL(teacher || student), 1 is KL(student || teacher). */
  beta: number;
  /** `jsd`: the rest of both distributions counts as one more token; otherwise both are renormalized. */
  tail: boolean;
}

/** The divergence, and its derivative by each of the student's log-probabilities. */
export interface DivergenceValue {
  value: number;
  /** `[K]` */
  slopes: Float64Array;
}

export interface DivergenceDefinition {
  /** For the guide, in Markdown. */
  formula: string;
  source: string;
  /** Which tokens are compared, besides `topk` of the teacher's most likely ones. Undefined: only these. */
  support?(options: Pick<DivergenceOptions, "beta">): "most likely" | "most likely and sampled" | "sampled";
  evaluate(compared: Compared, options: DivergenceOptions): DivergenceValue;
}

export const divergences = {
  /** Without the rest of the distributions it may be negative; then it is 0, as in verl. */
  forward_kl_topk: {
    formula: "max(0, sum p_t (log p_t - log p_s))",
    source: "verl",
    evaluate({ student, teacher }: Compared) {
      let value = 0;
      for (let k = 0; k < student.length; k++) value += Math.exp(teacher[k]!) * (teacher[k]! - student[k]!);
      const slopes = Float64Array.from(teacher, (logprob) => (value < 0 ? 0 : -Math.exp(logprob)));
      return { value: Math.max(0, value), slopes };
    },
  },
  cross_entropy_topk: {
    formula: "-sum p'_t log p_s, p' renormalized",
    source: "Tinker cookbook (SDFT)",
    evaluate({ student, teacher }: Compared) {
      const weights = renormalized(teacher).map(Math.exp);
      const slopes = weights.map((weight) => -weight);
      return { value: slopes.reduce((sum, slope, k) => sum + slope * student[k]!, 0), slopes };
    },
  },
  reverse_kl_topk: {
    formula: "sum p'_s (log p'_s - log p'_t), p' renormalized",
    source: "Tinker cookbook (SDFT)",
    evaluate: (compared: Compared) => generalized(compared, { beta: 1, tail: false }),
  },
  jsd: {
    formula: "beta KL(p_t, m) + (1 - beta) KL(p_s, m), m = (1 - beta) p_s + beta p_t; for beta 0 and 1 the KL itself",
    source: "TRL; arXiv 2306.13649",
    support: ({ beta }: Pick<DivergenceOptions, "beta">) =>
      beta === 0 ? "most likely" : beta === 1 ? "sampled" : "most likely and sampled",
    evaluate: generalized,
  },
} as const satisfies Record<string, DivergenceDefinition>;

export type DivergenceName = keyof typeof divergences;

/** The generalized Jensen-Shannon divergence of the completed distributions. */
function generalized({ student, teacher }: Compared, { beta, tail }: DivergenceOptions): DivergenceValue {
  const complete = tail ? withTail : renormalized;
  const [own, theirs] = [complete(student), complete(teacher)];
  let value = 0;
  /** Derivative by each log-probability of the completed distribution. */
  const slopes = own.map((logprob, k) => {
    const [p, q] = [Math.exp(logprob), Math.exp(theirs[k]!)];
    if (beta === 0) {
      value += q * (theirs[k]! - logprob);
      return -q;
    }
    if (beta === 1) {
      value += p * (logprob - theirs[k]!);
      return p * (logprob - theirs[k]! + 1);
    }
    const middle = Math.log((1 - beta) * p + beta * q);
    value += beta * q * (theirs[k]! - middle) + (1 - beta) * p * (logprob - middle);
    return (1 - beta) * p * (logprob - middle);
  });
  return { value, slopes: tail ? throughTail(slopes, own) : throughNormalizer(slopes, own) };
}

const sumOfExp = (logprobs: Float64Array) => logprobs.reduce((sum, logprob) => sum + Math.exp(logprob), 0);

function renormalized(logprobs: Float64Array): Float64Array {
  const largest = logprobs.reduce((most, logprob) => Math.max(most, logprob), Number.NEGATIVE_INFINITY);
  const total = largest + Math.log(logprobs.reduce((sum, logprob) => sum + Math.exp(logprob - largest), 0));
  return Float64Array.from(logprobs, (logprob) => logprob - total);
}

/** The probabilities are 32-bit floats, so a smaller rest is rounding. */
const leastRest = 1e-7;

function withTail(logprobs: Float64Array): Float64Array {
  const rest = Math.max(leastRest, 1 - sumOfExp(logprobs));
  return Float64Array.of(...logprobs, Math.log(rest));
}

/** `d tail / d logprob = -p / rest`; 0 where the rest is rounding. */
function throughTail(slopes: Float64Array, own: Float64Array): Float64Array {
  const count = own.length - 1;
  const isRounding = own[count]! <= Math.log(leastRest);
  const ofTail = isRounding ? 0 : slopes[count]! / Math.exp(own[count]!);
  return slopes.slice(0, count).map((slope, k) => slope - Math.exp(own[k]!) * ofTail);
}

function throughNormalizer(slopes: Float64Array, own: Float64Array): Float64Array {
  const total = slopes.reduce((sum, slope) => sum + slope, 0);
  return slopes.map((slope, k) => slope - Math.exp(own[k]!) * total);
}

/** How many tokens two lists have in common. */
export const overlap = (left: ArrayLike<number>, right: ArrayLike<number>): number => {
  const known = new Set(Array.from(left));
  return Array.from(right).filter((token) => known.has(token)).length;
};
