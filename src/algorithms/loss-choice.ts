/** Which loss a sequence is trained by, and what the losses that were chosen need. */
import type { TrainingBatch } from "../trajectories/types.ts";
import type { AggregationMode } from "./aggregation.ts";
import type { CustomLoss, LossInput } from "./custom-loss.ts";
import type { KlEstimatorName } from "./kl.ts";
import { highEntropyCount } from "./losses/high-entropy.ts";
import { type LossSettings, lossDefaults, type PolicyLossDefinition } from "./losses/sequence-loss.ts";
import { type PolicyLossName, policyLosses } from "./policy-losses.ts";

export interface PolicyLossOptions {
  lossFn: PolicyLossName | CustomLoss;
  /** Other losses for the sequences of some roles. */
  lossFnByRole?: Readonly<Record<string, PolicyLossName | CustomLoss>>;
  /** The ratio is clipped below at `1 - epsClip`. */
  epsClip: number;
  /** The ratio is clipped above at `1 + epsClipHigh`; `null` is `epsClip`. */
  epsClipHigh: number | null;
  /** ppo's dual clip: cap of the loss where the advantage is negative; above 1. Absent or `null` is off. */
  dualClip?: number | null;
  /** `null`: as the loss's authors aggregate (gspo, gmpo and sapo by sequence, the others by token). */
  aggMode: AggregationMode | null;
  /** Divisor of `seq-mean-token-sum-norm`, e.g. the longest reply allowed. */
  lossScale?: number;
  /** Added to token counts in `seq-mean-token-mean`. */
  countEps?: number;
  /** Weight of the KL to the reference; above 0 the batch must have `referenceLogprobs`. */
  klBeta: number;
  klEstimator: KlEstimatorName;
  /** Weight of the entropy bonus; the engine must then give entropies. */
  entropyCoeff?: number;
  /** The policy term is of this share of each sequence's tokens only: those of largest entropy. 1 is all. */
  highEntropyRatio?: number;
  /** gspo: `sequence` differentiates through the mean of the log-ratios, `token` (verl's form) does not. */
  gspoGradient?: "token" | "sequence";
  /** cispo: bounds of the ratio itself, where they are not those of `epsClip` and `epsClipHigh`. */
  cispoLow?: number | null;
  cispoHigh?: number | null;
  /** Constants of single losses that are not to be `lossDefaults`. */
  constants?: Partial<Omit<LossSettings, "low" | "high" | "dual" | "gspoGradient">>;
}

export type AnyLoss = PolicyLossOptions["lossFn"];

export const isCustom = (loss: AnyLoss): loss is CustomLoss => typeof loss !== "string";

export const definitionOf = (name: PolicyLossName): PolicyLossDefinition => policyLosses[name];

export const allLosses = ({ lossFn, lossFnByRole = {} }: PolicyLossOptions): AnyLoss[] => [
  ...new Set([lossFn, ...Object.values(lossFnByRole)]),
];

export const lossOf = ({ lossFn, lossFnByRole = {} }: PolicyLossOptions, role: string): AnyLoss =>
  Object.hasOwn(lossFnByRole, role) ? lossFnByRole[role]! : lossFn;

/** Whether a custom loss declares this input. */
const reads = (options: PolicyLossOptions, input: LossInput): boolean =>
  allLosses(options).some((loss) => isCustom(loss) && loss.inputs.includes(input));

/** Whether a loss looks at the whole batch before it gives a gradient. */
export const isCoupled = (options: PolicyLossOptions): boolean =>
  allLosses(options).some((loss) => !isCustom(loss) && definitionOf(loss).mark !== undefined);

export const hasEntropyBonus = ({ entropyCoeff = 0 }: PolicyLossOptions): boolean => entropyCoeff !== 0;

export const choosesByEntropy = ({ highEntropyRatio = 1 }: PolicyLossOptions): boolean => highEntropyRatio < 1;

export const readsEntropy = (options: PolicyLossOptions): boolean =>
  hasEntropyBonus(options) || choosesByEntropy(options) || reads(options, "entropy");

/** Whether the loss reads the sampler's log-probabilities besides those that ratios start from. */
export const readsSampler = (options: PolicyLossOptions): boolean => reads(options, "samplerLogprob");

/** Whether the loss compares with the reference policy. */
export const needsReference = (options: PolicyLossOptions): boolean =>
  options.klBeta > 0 || reads(options, "referenceLogprob");

export function settingsOf(options: PolicyLossOptions, loss: AnyLoss): LossSettings {
  const { epsClip, epsClipHigh, dualClip, cispoLow, cispoHigh, gspoGradient, constants } = options;
  const [low, high] = [1 - epsClip, 1 + (epsClipHigh ?? epsClip)];
  return {
    ...lossDefaults,
    ...constants,
    ...(gspoGradient === undefined ? {} : { gspoGradient }),
    ...(loss === "cispo" ? { low: cispoLow ?? low, high: cispoHigh ?? high } : { low, high }),
    dual: loss === "ppo" ? (dualClip ?? Number.POSITIVE_INFINITY) : Number.POSITIVE_INFINITY,
  };
}

/** Whether a token of advantage 0 may have a gradient; of a custom loss nobody knows. */
export const trainsWithoutAdvantage = (loss: AnyLoss, options: PolicyLossOptions): boolean =>
  isCustom(loss) || definitionOf(loss).trainsWithoutAdvantage?.(settingsOf(options, loss)) === true;

/** Tokens of a batch that the high-entropy choice will keep, whichever they are. */
export function highEntropyTokens(
  { offsets }: Pick<TrainingBatch, "offsets">,
  { highEntropyRatio = 1 }: PolicyLossOptions,
): number {
  let tokens = 0;
  for (let sequence = 0; sequence + 1 < offsets.length; sequence++) {
    tokens += highEntropyCount(offsets[sequence + 1]! - offsets[sequence]!, highEntropyRatio);
  }
  return tokens;
}
