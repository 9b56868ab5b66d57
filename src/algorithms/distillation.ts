/**
 * Learning from a teacher: its log-probabilities on the policy's tokens, divergences, and their advantages and losses.
 */
import { type KlEstimatorName, klEstimators } from "./kl.ts";

// A teacher with another tokenizer: its log-probabilities, moved to the policy's tokens by the bytes that both cover.

/** A token and where it starts and ends in a passage, in bytes. */
interface Piece {
  token: number;
  start: number;
  end: number;
}

/**
 * Each teacher token's log-probability is divided equally among the policy's tokens that share a byte with it, as in rLLM.
 * Only the bytes of the reasoning and of the content are compared, because the formats around them differ.
 *
 * @param passages the reasoning and the content, in their order in the reply; empty ones are skipped
 * @param student `[T]` the bytes of each token of the policy
 * @param teacher the same of the teacher, for the same reply
 * @param teacherLogprobs `[T of the teacher]`
 * @returns `[T of the policy]`, in nats; NaN: a token of the format, or every token if one of the replies does not contain a
 * passage
 */
export function alignTeacher(
  student: readonly Uint8Array[],
  teacher: readonly Uint8Array[],
  teacherLogprobs: ArrayLike<number>,
  passages: readonly string[],
): Float64Array {
  const aligned = new Float64Array(student.length).fill(Number.NaN);
  const [own, theirs] = [piecesOf(student, passages), piecesOf(teacher, passages)];
  if (!own || !theirs) return aligned;
  const teachersOf = student.map(() => new Set<number>());
  for (const [passage, pieces] of own.entries()) {
    let first = 0;
    for (const { token, start, end } of pieces) {
      while (first < theirs[passage]!.length && theirs[passage]![first]!.end <= start) first++;
      for (let at = first; at < theirs[passage]!.length && theirs[passage]![at]!.start < end; at++) {
        teachersOf[token]!.add(theirs[passage]![at]!.token);
      }
    }
  }
  const uses = new Map<number, number>();
  for (const shared of teachersOf) for (const token of shared) uses.set(token, (uses.get(token) ?? 0) + 1);
  for (const [token, shared] of teachersOf.entries()) {
    if (shared.size === 0) continue;
    aligned[token] = [...shared].reduce((sum, one) => sum + teacherLogprobs[one]! / uses.get(one)!, 0);
  }
  return aligned;
}

/** The parts of tokens within each passage; undefined if a passage is not in the text. */
function piecesOf(bytes: readonly Uint8Array[], passages: readonly string[]): Piece[][] | undefined {
  const whole = Buffer.concat(bytes);
  const found: Piece[][] = [];
  let after = 0;
  for (const passage of passages) {
    if (passage === "") continue;
    const length = Buffer.byteLength(passage);
    const from = whole.indexOf(passage, after);
    if (from === -1) return undefined;
    after = from + length;
    let at = -from;
    const pieces = bytes.map((own, token): Piece => {
      const start = at;
      at += own.length;
      return { token, start: Math.max(0, start), end: Math.min(length, at) };
    });
    found.push(pieces.filter(({ start, end }) => start < end));
  }
  return found;
}

// The difference between student and teacher on the sampled tokens, as an advantage: on-policy distillation by policy gradient.

export interface TeacherAdvantageOptions {
  /** `k1`: the log-ratio, whose expectation is the reverse KL. */
  estimator: KlEstimatorName;
  coefficient: number;
  /** How much of the following tokens' difference a token gets; 0: none. */
  discount: number;
  /** Bounds of the discounted sum, before the coefficient. */
  bounds?: { low: number; high: number } | undefined;
}

/**
 * `coefficient * sum over this and later tokens of discount^i * (-KL)`, where `i` is the distance in the sequence. A token
 * whose teacher is unknown (NaN) has a KL of 0, and so have tokens that the policy did not sample, such as results of tools;
 * these count in the distance, as in the Tinker cookbook.
 *
 * @param student `[N]` log-probabilities of the policy that sampled
 * @param teacher `[N]`
 * @param positions `[N]` of each token in its sequence, in ascending order within a sequence
 * @param offsets `[S + 1]`
 * @returns `[N]` to add to the advantages
 */
export function teacherAdvantages(
  student: Float32Array,
  teacher: Float32Array,
  positions: ArrayLike<number>,
  offsets: Int32Array,
  { estimator, coefficient, discount, bounds }: TeacherAdvantageOptions,
): Float32Array {
  const estimate = klEstimators[estimator];
  const gains = student.map((logprob, token) => {
    const { value } = estimate(logprob - teacher[token]!);
    return Number.isNaN(value) ? 0 : -value;
  });
  const { low, high } = bounds ?? { low: Number.NEGATIVE_INFINITY, high: Number.POSITIVE_INFINITY };
  const sums = Float64Array.from(gains);
  for (let sequence = 0; sequence + 1 < offsets.length; sequence++) {
    for (let token = offsets[sequence + 1]! - 2; token >= offsets[sequence]!; token--) {
      sums[token]! += discount ** (positions[token + 1]! - positions[token]!) * sums[token + 1]!;
    }
  }
  return gains.map((_, token) => coefficient * Math.min(Math.max(sums[token]!, low), high));
}

/** The mean over tokens of the log-ratio of student and teacher: an estimate of KL(student || teacher). NaN without tokens. */
export function teacherKl(student: ArrayLike<number>, teacher: ArrayLike<number>): number {
  let sum = 0;
  let count = 0;
  for (let token = 0; token < student.length; token++) {
    const difference = student[token]! - teacher[token]!;
    if (Number.isNaN(difference)) continue;
    sum += difference;
    count++;
  }
  return sum / count;
}

// Divergences between student and teacher over some tokens of one position: the teacher's most likely ones, or others. The
// rest of both distributions is ignored, counted as one more token (a tail), or removed by renormalizing.

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

// The loss of single tokens against a teacher, with its bounds; without weights.

interface Bounds {
  /** Losses are clamped to +-this, with zero gradient outside; null: no bound. */
  maxLoss: number | null;
}

/** An estimate of the KL from the sampled token alone. Its gradient is not that of the estimated KL; see the guide. */
export interface EstimatorLoss extends Bounds {
  kind: "estimator";
  estimator: KlEstimatorName;
}

/** A divergence over several tokens of each position. */
export interface TokensLoss extends Bounds, DivergenceOptions {
  kind: "tokens";
  divergence: DivergenceName;
  /** Number of the teacher's most likely tokens. */
  count: number;
  /** Log-probabilities are clamped from below; null: they are not. */
  leastLogprob: number | null;
}

/** Zero for a token whose teacher is unknown (NaN). */
export function estimatorLoss(logprob: number, teacher: number, { estimator, maxLoss }: EstimatorLoss) {
  const { value, slope } = klEstimators[estimator](logprob - teacher);
  return Number.isNaN(value)
    ? { value: 0, slope: 0 }
    : { value: bounded(value, maxLoss), slope: passes(value, maxLoss) * slope };
}

export function tokensLoss({ student, teacher }: Compared, options: TokensLoss): DivergenceValue {
  const { divergence, leastLogprob, maxLoss } = options;
  const least = leastLogprob ?? Number.NEGATIVE_INFINITY;
  const raise = (logprobs: Compared["student"]) => Float64Array.from(logprobs, (logprob) => Math.max(logprob, least));
  const compared = { student: raise(student), teacher: raise(teacher) };
  const { evaluate }: DivergenceDefinition = divergences[divergence];
  const { value, slopes } = evaluate(compared, options);
  const factor = passes(value, maxLoss);
  return {
    value: bounded(value, maxLoss),
    slopes: slopes.map((slope, k) => (student[k]! < least ? 0 : factor * slope)),
  };
}

const bounded = (value: number, max: number | null) => (max === null ? value : Math.min(Math.max(value, -max), max));
const passes = (value: number, max: number | null) => Number(max === null || Math.abs(value) <= max);
