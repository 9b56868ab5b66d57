/** The colorings of tokens. A token that is not trained on has no color in any of them. */
import type { Episode, SampledTokens, TokenValues } from "../../src/view/api.ts";
import { percent, short, signed } from "../parts/numbers.ts";

export const coloringNames = [
  "advantage",
  "logprob",
  "ratio",
  "clipped",
  "entropy",
  "reference",
  "mismatch",
  "version",
  "mask",
] as const;
export type ColoringName = (typeof coloringNames)[number];

export interface Coloring {
  label: string;
  /** One sentence under the transcript. */
  about: string;
  /** The token's number; null: not recorded for it. */
  value: (tokens: SampledTokens, index: number) => number | null;
  show: (value: number) => string;
  /** `both`: two colors around 0. `up`: stronger with size. `steps`: shades in order. */
  scale: "both" | "up" | "steps";
  /** Limits for the value that gets the full color. */
  least: number;
  most?: number;
}

/** The value of a token; null if unknown. */
function numberAt(values: TokenValues | undefined, index: number): number | null {
  const value = Array.isArray(values) ? values[index] : values;
  return value === undefined || value === null ? null : Number(value);
}

const difference = (left: number | null, right: number | null) =>
  left === null || right === null ? null : left - right;

export const isTrained = (tokens: SampledTokens, index: number): boolean => numberAt(tokens.mask, index) !== 0;

export const colorings: Readonly<Record<ColoringName, Coloring>> = {
  advantage: {
    label: "advantage",
    about: "How much better the reply is than its group: blue tokens are made more likely, orange tokens less likely.",
    value: ({ advantage }, index) => numberAt(advantage, index),
    show: signed,
    scale: "both",
    least: 1e-6,
  },
  logprob: {
    label: "log-prob",
    about: "Log-probability under the sampler, in nats: the stronger, the less likely the token was.",
    value: ({ logprobs }, index) => numberAt(logprobs, index),
    show: (value) => `${short(value)} (${percent(Math.exp(value))})`,
    scale: "up",
    least: 6,
    most: 6,
  },
  ratio: {
    label: "ratio",
    about:
      "Probability at the end of the update divided by that at its start: blue tokens became more likely, orange tokens less likely.",
    value: ({ ratio }, index) => {
      const value = numberAt(ratio, index);
      return value === null ? null : Math.log(value);
    },
    show: (value) => short(Math.exp(value)),
    scale: "both",
    least: 0.05,
    most: 1,
  },
  clipped: {
    label: "clipped",
    about: "The clipped objective ignored the gradient of the colored tokens.",
    value: ({ clipped }, index) => numberAt(clipped, index),
    show: (value) => (value === 0 ? "no" : "yes"),
    scale: "up",
    least: 1,
    most: 1,
  },
  entropy: {
    label: "entropy",
    about: "Entropy of the distribution the token was drawn from, in nats: the stronger, the less certain.",
    value: ({ entropy }, index) => numberAt(entropy, index),
    show: short,
    scale: "up",
    least: 1,
  },
  reference: {
    label: "reference KL",
    about:
      "Log-probability under the trainer minus that under the reference model: blue tokens became more likely, orange tokens less likely.",
    value: ({ trainerLogprobs, logprobs, referenceLogprobs }, index) =>
      difference(numberAt(trainerLogprobs ?? logprobs, index), numberAt(referenceLogprobs, index)),
    show: signed,
    scale: "both",
    least: 0.05,
    most: 3,
  },
  mismatch: {
    label: "mismatch",
    about:
      "Log-probability under the trainer minus that under the sampler, for the same weights: should be close to 0.",
    value: ({ trainerLogprobs, logprobs }, index) =>
      difference(numberAt(trainerLogprobs, index), numberAt(logprobs, index)),
    show: signed,
    scale: "both",
    least: 0.05,
    most: 2,
  },
  version: {
    label: "version",
    about: "Version of the weights that sampled the token: the darker, the newer.",
    value: ({ version }, index) => numberAt(version, index),
    show: String,
    scale: "steps",
    least: 1,
  },
  mask: {
    label: "mask",
    about: "Colored tokens are trained on. The others were sampled and are not, e.g. rejected or filtered.",
    value: ({ mask }, index) => numberAt(mask, index),
    show: (value) => (value === 0 ? "not trained on" : "trained on"),
    scale: "up",
    least: 1,
    most: 1,
  },
};

/** The values of this coloring in an episode: null if nothing is recorded. */
export interface Range {
  low: number;
  high: number;
  /** The value of full color. */
  full: number;
}

/** Computed over the trained tokens. */
export function rangeOf(coloring: Coloring, episode: Pick<Episode, "detail">): Range | null {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const { turnList } of episode.detail) {
    for (const { sampled } of turnList) {
      for (let index = 0; index < sampled.ids.length; index++) {
        const value = coloring.value(sampled, index);
        if (value === null || !Number.isFinite(value) || (coloring !== colorings.mask && !isTrained(sampled, index)))
          continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
  }
  if (low > high) return null;
  const size = coloring.scale === "steps" ? Math.max(1, high - low) : Math.max(Math.abs(low), Math.abs(high));
  return { low, high, full: Math.min(coloring.most ?? size, Math.max(coloring.least, size)) };
}

export interface Shade {
  /** `neutral`: no color. */
  side: "neutral" | "positive" | "negative" | "plain";
  /** From 0 to 1. */
  strength: number;
}

const neutral: Shade = { side: "neutral", strength: 0 };

export function shadeOf(coloring: Coloring, tokens: SampledTokens, index: number, range: Range | null): Shade {
  const value = coloring.value(tokens, index);
  if (range === null || value === null || Number.isNaN(value) || !isTrained(tokens, index)) return neutral;
  return shade(coloring, value, range);
}

/** The color of a value, also for the legend. */
export function shade({ scale }: Coloring, value: number, { low, full }: Range): Shade {
  if (scale === "steps") return { side: "plain", strength: 0.15 + 0.85 * Math.min(1, (value - low) / full) };
  const strength = Math.min(1, Math.abs(value) / full);
  if (strength === 0) return neutral;
  return { side: scale === "up" ? "plain" : value > 0 ? "positive" : "negative", strength };
}

/** The values of a legend, from low to high. */
export function legendValues({ scale }: Coloring, { low, high, full }: Range): number[] {
  if (scale === "both") return [-full, -full / 2, 0, full / 2, full];
  if (scale === "steps") {
    const versions = Math.min(6, Math.round(high - low) + 1);
    return Array.from({ length: versions }, (_, index) =>
      Math.round(low + ((high - low) * index) / Math.max(1, versions - 1)),
    );
  }
  if (full === 1 && (high === 1 || high === 0) && (low === 0 || low === 1)) return [0, 1];
  const sign = high <= 0 && low < 0 ? -1 : 1;
  return [0, 0.25, 0.5, 0.75, 1].map((share) => sign * share * full);
}
