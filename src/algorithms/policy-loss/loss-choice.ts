/** Which loss trains a sequence, and what the selected losses need. */
import { own } from "../../own.ts";
import { countsOf } from "../../trajectories/batch.ts";
import type { BatchTotals, TrainingBatch } from "../../trajectories/types.ts";
import type { KlTerm } from "../kl/kl-estimators.ts";
import type { LossSettings } from "../losses/definition.ts";
import { highEntropyCount } from "../losses/largest.ts";
import { definitionOf, type LossConstants, lossDefaults, type PolicyLossName } from "../losses/policy-losses.ts";
import { type AggregationMode, tokenWeight } from "./aggregation.ts";
import type { CustomLoss, LossInput } from "./custom-loss.ts";

export interface PolicyLossOptions {
  lossFn: PolicyLossName | CustomLoss;
  /** Other losses for the sequences of some roles. */
  lossFnByRole?: Readonly<Record<string, PolicyLossName | CustomLoss>>;
  /** The ratio is clipped below at `1 - epsClip`. */
  epsClip: number;
  /** The ratio is clipped above at `1 + epsClipHigh`; `null` uses `epsClip`. */
  epsClipHigh: number | null;
  /** `null` aggregates as the loss's authors do: by sequence or by token. */
  aggMode: AggregationMode | null;
  /** Divisor of `seq-mean-token-sum-norm`, e.g. the longest reply allowed. */
  lossScale?: number;
  /** Added to token counts in `seq-mean-token-mean`. */
  countEps?: number;
  /** The KL to the reference, for which the batch must have `referenceLogprobs`. */
  kl?: KlTerm;
  /** Weight of the entropy bonus; if it is not 0 the engine must return entropies. */
  entropyCoeff?: number;
  /** Share of each sequence's tokens, those of largest entropy, that are in the policy term; 1 keeps all. */
  highEntropyRatio?: number;
  /** A further term, such as a loss against a teacher, trains tokens without an advantage. */
  trainsAll?: boolean;
  /** Constants of single losses, and others that replace those of `lossDefaults`. */
  constants?: Partial<Omit<LossSettings, "low" | "high"> & LossConstants>;
}

export type AnyLoss = PolicyLossOptions["lossFn"];

export const isCustom = (loss: AnyLoss): loss is CustomLoss => typeof loss !== "string";

export const allLosses = ({ lossFn, lossFnByRole = {} }: PolicyLossOptions): AnyLoss[] => [
  ...new Set([lossFn, ...Object.values(lossFnByRole)]),
];

export const lossOf = ({ lossFn, lossFnByRole }: PolicyLossOptions, role: string): AnyLoss =>
  own(lossFnByRole, role) ?? lossFn;

/** Whether a custom loss declares this input. */
const reads = (options: PolicyLossOptions, input: LossInput): boolean =>
  allLosses(options).some((loss) => isCustom(loss) && loss.inputs.includes(input));

/** Whether a loss needs the whole batch for a gradient. */
export const isCoupled = (options: PolicyLossOptions): boolean =>
  allLosses(options).some((loss) => !isCustom(loss) && definitionOf(loss).mark !== undefined);

/** Whether a second bound, such as ppo's dual clip, can hold tokens. */
export const hasSecondBound = (options: PolicyLossOptions): boolean =>
  allLosses(options).some((loss) => !isCustom(loss) && definitionOf(loss).caps?.(settingsOf(options)) === true);

export const hasEntropyBonus = ({ entropyCoeff = 0 }: PolicyLossOptions): boolean => entropyCoeff !== 0;

export const selectsByEntropy = ({ highEntropyRatio = 1 }: PolicyLossOptions): boolean => highEntropyRatio < 1;

export const readsEntropy = (options: PolicyLossOptions): boolean =>
  hasEntropyBonus(options) || selectsByEntropy(options) || reads(options, "entropy");

/** Whether the loss reads the sampler's log-probabilities in addition to the old ones. */
export const readsSampler = (options: PolicyLossOptions): boolean => reads(options, "samplerLogprob");

/** Whether the loss compares with the reference policy. */
export const needsReference = (options: PolicyLossOptions): boolean =>
  options.kl !== undefined || reads(options, "referenceLogprob");

export function settingsOf({ epsClip, epsClipHigh, constants }: PolicyLossOptions): LossSettings & LossConstants {
  return { ...lossDefaults, ...constants, low: 1 - epsClip, high: 1 + (epsClipHigh ?? epsClip) };
}

/** The weight of each of a sequence's `tokens` in the loss of the batch. */
export function weightOf(options: PolicyLossOptions, loss: AnyLoss, tokens: number, totals: BatchTotals): number {
  const byAuthors = isCustom(loss) ? undefined : definitionOf(loss).aggMode;
  return tokenWeight(options.aggMode ?? byAuthors ?? "token-mean", tokens, totals, options);
}

/** Whether a token with advantage 0 may have a gradient; assumed of custom losses. */
export const trainsWithoutAdvantage = (loss: AnyLoss, options: PolicyLossOptions): boolean =>
  isCustom(loss) || definitionOf(loss).trainsWithoutAdvantage?.(settingsOf(options)) === true;

/** Number of tokens of a batch that the high-entropy selection keeps. */
export const highEntropyTokens = (
  { offsets }: Pick<TrainingBatch, "offsets">,
  { highEntropyRatio = 1 }: PolicyLossOptions,
): number => countsOf(offsets).reduce((tokens, count) => tokens + highEntropyCount(count, highEntropyRatio), 0);
