import { expect, it } from "vitest";
import { z } from "zod";
import {
  adamParams,
  atMostOne,
  loraConfig,
  probability,
  seed,
  temperatureFrom,
  wholeAtLeast,
  wholeFrom,
} from "./handshake.ts";

const sampling = z.object({
  ...{ seed, top_p: probability, min_p: atMostOne, temperature: temperatureFrom(0.01) },
  ...{ top_k: wholeAtLeast(-1), num_samples: wholeFrom(1, 1024) },
});

/** Each with values that are accepted, and values that are refused with a sentence that is true of them. */
it.each<[string, z.ZodObject, unknown[], unknown[], string]>([
  ["learning_rate", adamParams, [0, 1e-4], [-1, -1e-9], "a number of at least 0"],
  ["beta1", adamParams, [0, 0.9], [1, -0.1, 2], "a number of at least 0 and below 1"],
  ["beta2", adamParams, [0, 0.999], [1, -0.1], "a number of at least 0 and below 1"],
  ["eps", adamParams, [1e-12], [0, -1, 1e-50], "a number above 0, also in float32"],
  ["weight_decay", adamParams, [0, 0.1], [-0.1], "a number of at least 0"],
  ["grad_clip_norm", adamParams, [0, 1], [-1], "a number of at least 0"],
  ["rank", loraConfig, [1, 16_384], [0, -1, 1.5, 16_385], "a whole number from 1 to 16384"],
  ["alpha", loraConfig, [32], [0, -1], "a number above 0"],
  ["seed", loraConfig, [0, 2 ** 53 - 1], [-1, 1.5, 2 ** 53], "a whole number from 0 to 2^53 - 1"],
  ["seed", sampling, [0], [-1, 1.5, 2 ** 53], "a whole number from 0 to 2^53 - 1"],
  ["temperature", sampling, [0, 0.01, 2], [-1, 0.001], "0 (greedy) or a number of at least 0.01"],
  ["top_p", sampling, [1e-9, 1], [0, -1, 1.01], "a number above 0 and at most 1"],
  ["min_p", sampling, [0, 1], [-0.1, 1.1], "a number from 0 to 1"],
  ["top_k", sampling, [-1, 0, 50], [-2, 0.5], "a whole number of at least -1"],
  ["num_samples", sampling, [1, 1024], [0, 1025, 1.5], "a whole number from 1 to 1024"],
])("%s of clients: values outside of its range are refused with a true sentence", (key, schema, good, bad, rule) => {
  const field = schema.shape[key] as z.ZodType;
  const refused = (value: unknown) => field.safeParse(value).error?.issues[0]?.message;
  expect(good.map(refused)).toEqual(good.map(() => undefined));
  const wrong = [...bad, Number.NaN, Number.POSITIVE_INFINITY];
  expect(wrong.map(refused)).toEqual(wrong.map((value) => `must be ${rule}, but is ${value}`));
  expect(refused("1")).toBe(`must be ${rule}, but is "1"`);
});

it("a value that is missing is called missing", () => {
  expect(adamParams.safeParse({}).error?.issues.map(({ message }) => message)).toEqual([
    "must be a number of at least 0, but is missing",
  ]);
});
