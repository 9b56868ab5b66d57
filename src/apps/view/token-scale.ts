/**
 * The numbers that tokens are colored by, and their ranges. Imports only types, so that the page uses the same numbers
 * as the server.
 */
import type { Episode, SampledTokens, TokenValues } from "./queries/episode.ts";

export const coloringNames = [
  "advantage",
  "logprob",
  "ratio",
  "clipped",
  "entropy",
  "reference",
  "teacher",
  "mismatch",
  "version",
  "mask",
] as const;
export type ColoringName = (typeof coloringNames)[number];

/** The value of a token; null if unknown. */
function numberAt(values: TokenValues | undefined, index: number): number | null {
  const value = Array.isArray(values) ? values[index] : values;
  return value === undefined || value === null ? null : Number(value);
}

const difference = (left: number | null, right: number | null) =>
  left === null || right === null ? null : left - right;

export const isTrained = (tokens: SampledTokens, index: number): boolean => numberAt(tokens.mask, index) !== 0;

/** The token's number by coloring; null: not recorded for it. */
export const tokenNumbers: Readonly<Record<ColoringName, (tokens: SampledTokens, index: number) => number | null>> = {
  advantage: ({ advantage }, index) => numberAt(advantage, index),
  logprob: ({ logprobs }, index) => numberAt(logprobs, index),
  ratio({ ratio }, index) {
    const value = numberAt(ratio, index);
    return value === null ? null : Math.log(value);
  },
  clipped: ({ clipped }, index) => numberAt(clipped, index),
  entropy: ({ entropy }, index) => numberAt(entropy, index),
  reference: ({ trainerLogprobs, logprobs, referenceLogprobs }, index) =>
    difference(numberAt(trainerLogprobs ?? logprobs, index), numberAt(referenceLogprobs, index)),
  teacher: ({ trainerLogprobs, logprobs, teacherLogprobs }, index) =>
    difference(numberAt(teacherLogprobs, index), numberAt(trainerLogprobs ?? logprobs, index)),
  mismatch: ({ trainerLogprobs, logprobs }, index) =>
    difference(numberAt(trainerLogprobs, index), numberAt(logprobs, index)),
  version: ({ version }, index) => numberAt(version, index),
  mask: ({ mask }, index) => numberAt(mask, index),
};

export type Bounds = [low: number, high: number];

/** The smallest and the largest number of the trained tokens; null if none is recorded. */
export function boundsOf(name: ColoringName, { detail }: Pick<Episode, "detail">): Bounds | null {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const { turnList } of detail) {
    for (const { sampled } of turnList) {
      for (let index = 0; index < sampled.ids.length; index++) {
        const value = tokenNumbers[name](sampled, index);
        if (value === null || !Number.isFinite(value) || (name !== "mask" && !isTrained(sampled, index))) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
  }
  return low > high ? null : [low, high];
}
