/**
 * A policy loss maps the trained tokens of one sequence to a value and a slope per token, the derivative by the token's
 * log-probability, in float64. Losses are plain loops (`eachToken`) that read like the formula. Compiled to WebAssembly vector code
 * they were more than 10 times as fast, which a run does not notice: PPO and its gradient take 0.09 µs per token on a busy 2-core
 * machine, training at 13,000 tokens/s 77 µs (`npm run bench -- grpo-step` prints the losses' share of a step: 0.01%).
 */
import type { z } from "zod";

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
  /** Tokens held by a second bound (such as ppo's dual clip). */
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

/** What every loss may read, besides its own constants. A type alias, unlike an interface, is also a record. */
export type LossSettings = {
  /** Lower clip bound of the ratio (1 - epsilon). */
  low: number;
  /** Upper clip bound of the ratio (1 + epsilon). */
  high: number;
  /** Log-ratios are clamped to +-limit before the exponential; the gradient is zero outside. */
  logRatioLimit: number;
  /** Seed of the random choices of this evaluation. */
  seed: number;
};

export type SequenceLoss = (tokens: SequenceTokens, settings: LossSettings) => LossValues;

/** The tokens of a batch that are trained by one loss, `[N]` each, for losses that select some of them. */
export interface BatchTokens {
  logprobs: Float64Array;
  /** Log-probabilities that ratios start from. */
  old: Float64Array;
  advantages: Float64Array;
}

/** The names of a loss, and its settings, on engines that compute it themselves. */
export interface EngineLoss {
  /** In Tinker's protocol. `needsMask`: it has the same gradient only on services that leave the prompt out of the loss. */
  tinker?: { name: string; config: Readonly<Record<string, number>>; needsMask?: true };
  /** Among verl's registered losses; settings are keys of `actor_rollout_ref.actor`. `averages`: over each sequence's tokens. */
  verl?: { name: string; settings: Readonly<Record<string, unknown>>; averages?: true };
}

/** The values of a loss's constants. */
export type ConstantsOf<Shape> = { readonly [Name in keyof Shape]: z.output<Shape[Name]> };

/**
 * A policy loss: all that is known of it. The schema, the checks of settings, `--explain`, the run options, the engines' names and
 * the guide's table are derived from it.
 *
 * @typeParam Shape the constants of its formula
 */
export interface PolicyLossDefinition<Shape extends z.ZodRawShape = z.ZodRawShape> {
  /** The names that verl and rLLM give to the same loss. */
  aliases?: readonly string[];
  /** For the guide, in Markdown. */
  formula: string;
  /** For the guide: numbers of arXiv, or other text. */
  source: string;
  /** How it compares with the old policy: by a clipped ratio (`eps_clip`, `eps_clip_high`), otherwise, or not at all. */
  ratio: "clipped" | "unclipped" | "none";
  /** Whether the ratio is a factor without a gradient, so that a slope is not the derivative by the ratio. */
  detached?: true;
  /** Keys of `rllm.algorithm.policy_loss`, with type, default and meaning. */
  constants: Shape;
  /** The constants that do nothing while every ratio is 1. */
  ratioConstants?: readonly string[];
  evaluate(tokens: SequenceTokens, settings: LossSettings & ConstantsOf<Shape>): LossValues;
  /** Selects tokens from the outputs of the whole batch: `[N]` marks, passed to `evaluate` as `marked`. */
  mark?(tokens: BatchTokens, settings: LossSettings & ConstantsOf<Shape>): Uint8Array;
  /** Whether a token with advantage 0 can have a gradient. */
  trainsWithoutAdvantage?(settings: ConstantsOf<Shape>): boolean;
  /** The authors' aggregation; the default is token-mean. */
  aggMode?: "seq-mean-token-mean";
  /** The off-policy weights of a sequence's tokens, if it cannot have those of its tokens. */
  weightsOf?(weights: Float32Array): Float32Array;
  /** Whether a second bound can hold tokens, which `capped` counts. */
  caps?(settings: ConstantsOf<Shape>): boolean;
  /** Minus the slope of a token whose ratio is 1, as a multiple of its advantage; absent or undefined if it is not one. */
  slopeAtOne?(settings: LossSettings & ConstantsOf<Shape>): number | undefined;
  /**
   * The same loss on engines that have it. Not called for a loss whose `ratio` is `none`.
   *
   * @param weight of each token's loss; undefined if tokens differ
   */
  onEngine?(settings: LossSettings & ConstantsOf<Shape>, weight: number | undefined): EngineLoss | undefined;
  /** Hone's own Tinker service offers it by its name, with these settings and their defaults; null: required. */
  served?: Readonly<Record<string, number | null>>;
}

/** Types a definition by its constants. */
export const defineLoss = <Shape extends z.ZodRawShape>(definition: PolicyLossDefinition<Shape>) => definition;

/** The bounds of a ratio, as engines spell them. */
export const clipBounds = ({ low, high }: Pick<LossSettings, "low" | "high">) => ({
  tinker: { clip_low_threshold: low, clip_high_threshold: high },
  verl: { clip_ratio_low: 1 - low, clip_ratio_high: high - 1 },
});

/** Above every ratio, because verl limits log-ratios to 20. */
export const unbounded = 1e9;

/** NaN stays NaN. */
export const clamp = (value: number, low: number, high: number): number =>
  value > high ? high : value < low ? low : value;

// The largest of many values.

/**
 * Positions, ascending, of the `count` largest values; of equal values the first.
 *
 * @param count 0..values.length
 */
export function largestPositions(values: Float64Array, count: number): Int32Array {
  const positions = new Int32Array(count);
  const threshold = values.toSorted().at(-count) ?? Number.NaN;
  let ties = count - values.reduce((above, value) => above + (value > threshold ? 1 : 0), 0);
  let found = 0;
  for (const [position, value] of values.entries()) {
    if (found === count) break;
    if (value > threshold || (value === threshold && ties-- > 0)) positions[found++] = position;
  }
  return positions;
}

/** How many tokens of a sequence the high-entropy selection keeps (arXiv 2506.01939): the share, at least one if any. */
export const highEntropyCount = (count: number, ratio: number): number =>
  count === 0 ? 0 : Math.max(1, Math.floor(count * ratio));
