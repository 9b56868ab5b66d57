/** The colorings of tokens. A token that is not trained on has no color in any of them. */
import type { SampledTokens } from "../../src/apps/view/queries/episode.ts";
import { type Bounds, type ColoringName, isTrained, tokenNumbers } from "../../src/apps/view/token-scale.ts";
import { percent, short, signed } from "../parts/numbers.ts";

export interface Coloring {
  label: string;
  /** One sentence under the transcript. */
  about: string;
  show: (value: number) => string;
  /** `both`: two colors around 0. `up`: stronger with size. `steps`: shades in order. */
  scale: "both" | "up" | "steps";
  /** Limits for the value that gets the full color. */
  min: number;
  max?: number;
}

export const colorings: Readonly<Record<ColoringName, Coloring>> = {
  advantage: {
    label: "advantage",
    about: "How much better the reply is than its group: blue tokens are made more likely, orange tokens less likely.",
    show: signed,
    scale: "both",
    min: 1e-6,
  },
  logprob: {
    label: "log-prob",
    about:
      "Log-probability under the sampler (of a row: under the trainer), in nats: the stronger, the less likely the token was.",
    show: (value) => `${short(value)} (${percent(Math.exp(value))})`,
    scale: "up",
    min: 6,
    max: 6,
  },
  ratio: {
    label: "ratio",
    about:
      "Probability at the end of the update divided by that at its start: blue tokens became more likely, orange tokens less likely.",
    show: (value) => short(Math.exp(value)),
    scale: "both",
    min: 0.05,
    max: 1,
  },
  clipped: {
    label: "clipped",
    about: "The clipped objective ignored the gradient of the colored tokens.",
    show: (value) => (value === 0 ? "no" : "yes"),
    scale: "up",
    min: 1,
    max: 1,
  },
  entropy: {
    label: "entropy",
    about: "Entropy of the distribution the token was drawn from, in nats: the stronger, the less certain.",
    show: short,
    scale: "up",
    min: 1,
  },
  reference: {
    label: "reference KL",
    about:
      "Log-probability under the trainer minus that under the reference model: blue tokens became more likely, orange tokens less likely.",
    show: signed,
    scale: "both",
    min: 0.05,
    max: 3,
  },
  teacher: {
    label: "teacher",
    about:
      "Log-probability under the teacher minus that under the trainer: blue tokens are more likely for the teacher than for the policy, orange tokens less likely.",
    show: signed,
    scale: "both",
    min: 0.05,
    max: 3,
  },
  mismatch: {
    label: "mismatch",
    about:
      "Log-probability under the trainer minus that under the sampler, for the same weights: should be close to 0.",
    show: signed,
    scale: "both",
    min: 0.05,
    max: 2,
  },
  version: {
    label: "version",
    about: "Version of the weights that sampled the token: the darker, the newer.",
    show: String,
    scale: "steps",
    min: 1,
  },
  mask: {
    label: "mask",
    about: "Colored tokens are trained on. The others were sampled and are not, e.g. rejected or filtered.",
    show: (value) => (value === 0 ? "not trained on" : "trained on"),
    scale: "up",
    min: 1,
    max: 1,
  },
};

/** The values of a coloring. */
export interface Range {
  low: number;
  high: number;
  /** The value of full color. */
  full: number;
}

/** @param bounds of an episode's trained tokens, or of a run's */
export function rangeOf({ scale, min, max }: Coloring, bounds: Bounds | null | undefined): Range | null {
  if (!bounds) return null;
  const [low, high] = bounds;
  const size = scale === "steps" ? Math.max(1, high - low) : Math.max(Math.abs(low), Math.abs(high));
  return { low, high, full: Math.min(max ?? size, Math.max(min, size)) };
}

export interface Shade {
  /** `neutral`: no color. */
  side: "neutral" | "positive" | "negative" | "plain";
  /** From 0 to 1. */
  strength: number;
}

const neutral: Shade = { side: "neutral", strength: 0 };

export function shadeOf(name: ColoringName, tokens: SampledTokens, index: number, range: Range | null): Shade {
  const value = tokenNumbers[name](tokens, index);
  if (range === null || value === null || Number.isNaN(value) || !isTrained(tokens, index)) return neutral;
  return shade(colorings[name], value, range);
}

/** The color of a value, also for the legend. */
export function shade({ scale }: Coloring, value: number, { low, full }: Range): Shade {
  if (scale === "steps")
    return { side: "plain", strength: 0.15 + 0.85 * Math.max(0, Math.min(1, (value - low) / full)) };
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
