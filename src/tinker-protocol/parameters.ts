/** The numbers that clients send: what each may be, and the sentence that says so. */
import { z } from "zod";

const shown = (value: unknown) => (typeof value === "number" ? String(value) : JSON.stringify(value)?.slice(0, 100));

function number(rule: string, fits: (value: number) => boolean) {
  const isFitting = (value: unknown) => typeof value === "number" && Number.isFinite(value) && fits(value);
  return z.custom<number>(isFitting, {
    error: ({ input }) => `must be ${rule}, but ${input === undefined ? "is missing" : `is ${shown(input)}`}`,
  });
}

/** Integers beyond 2^53 have been rounded, so they are refused. */
const whole = (rule: string, fits: (value: number) => boolean) =>
  number(`a whole number ${rule}`, (value) => Number.isSafeInteger(value) && fits(value));

const notNegative = number("a number of at least 0", (value) => value >= 0);
export const wholeAtLeast = (least: number) => whole(`of at least ${least}`, (value) => value >= least);
export const wholeFrom = (least: number, most: number) =>
  whole(`from ${least} to ${most}`, (value) => value >= least && value <= most);

export const probability = number("a number above 0 and at most 1", (value) => value > 0 && value <= 1);
export const atMostOne = number("a number from 0 to 1", (value) => value >= 0 && value <= 1);
/** @param least the smallest one above 0 that the engine supports */
export const temperatureFrom = (least: number) =>
  number(`0 (greedy) or a number of at least ${least}`, (value) => value === 0 || value >= least);
export const seed = whole("from 0 to 2^53 - 1", (value) => value >= 0);

const decay = number("a number of at least 0 and below 1", (value) => value >= 0 && value < 1);

export const adamParams = z.strictObject({
  learning_rate: notNegative,
  beta1: decay.default(0.9),
  beta2: decay.default(0.95),
  // The optimizer divides by it in float32, for instance where no gradient has arrived so far.
  eps: number("a number above 0, also in float32", (value) => Math.fround(value) > 0).default(1e-12),
  weight_decay: notNegative.default(0),
  grad_clip_norm: notNegative.default(0),
});

export const loraConfig = z.looseObject({
  /** A larger rank only exhausts memory: no model has matrices of a higher rank. */
  rank: wholeFrom(1, 16_384).default(32),
  /** Tinker's own clients do not send it; the scale is then 32 / rank. */
  alpha: number("a number above 0", (value) => value > 0).default(32),
  seed: seed.nullish(),
  train_unembed: z.boolean().default(true),
  train_mlp: z.boolean().default(true),
  train_attn: z.boolean().default(true),
});
