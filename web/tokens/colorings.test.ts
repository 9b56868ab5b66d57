import { describe, expect, test } from "vitest";
import type { SampledTokens, Turn } from "../../src/apps/view/queries/episode.ts";
import { boundsOf, coloringNames } from "../../src/apps/view/token-scale.ts";
import { colorings, legendValues, rangeOf, shade, shadeOf } from "./colorings.ts";
import { thinkingRange, tokenText } from "./token-text.ts";

/** The last token is not trained on, and its values would ruin every scale. */
const sampled: SampledTokens = {
  ids: [10, 11, 12, 13],
  logprobs: [-0.1, -2, -4, -90],
  trainerLogprobs: [-0.1, -2.5, -4, -1],
  referenceLogprobs: [-0.1, -1.5, -5, -1],
  teacherLogprobs: [-0.1, -3.5, -2, -1],
  ratio: [1, 1.2, 0.8, 900],
  clipped: [0, 0, 1, 1],
  entropy: [0, 1, 2, 80],
  advantage: [0.5, -1, 0, 700],
  mask: [1, 1, 1, 0],
  version: [3, 4, 5, 900],
};
const episode = { detail: [{ turnList: [{ sampled } as Turn] }] } as Parameters<typeof boundsOf>[1];

describe.each(coloringNames)("coloring by %s", (name) => {
  const coloring = colorings[name];
  const range = rangeOf(coloring, boundsOf(name, episode));

  test("has a range and a legend from it", () => {
    expect(range?.full).toBeLessThan(10);
    expect(legendValues(coloring, range!).every(Number.isFinite)).toBe(true);
  });

  test("is neutral where a token is not trained on", () =>
    expect(shadeOf(name, sampled, 3, range)).toEqual({ side: "neutral", strength: 0 }));

  test("is neutral and without a range where nothing is recorded", () => {
    const bare: SampledTokens = { ids: [1], logprobs: [null], mask: [null], version: [null] };
    expect(shadeOf(name, bare, 0, range)).toEqual({ side: "neutral", strength: 0 });
    expect(boundsOf(name, { detail: [{ turnList: [{ sampled: bare } as Turn] }] } as typeof episode)).toBeNull();
    expect(rangeOf(coloring, null)).toBeNull();
  });
});

test.each([
  ["advantage", 0, "positive"],
  ["advantage", 1, "negative"],
  ["advantage", 2, "neutral"],
  ["ratio", 1, "positive"],
  ["ratio", 2, "negative"],
  ["clipped", 2, "plain"],
  ["clipped", 0, "neutral"],
  ["reference", 1, "negative"],
  ["reference", 2, "positive"],
  ["teacher", 1, "negative"],
  ["teacher", 2, "positive"],
  ["mismatch", 1, "negative"],
  ["mismatch", 0, "neutral"],
  ["mask", 0, "plain"],
] as const)("%s of token %i is %s", (name, index, side) => {
  const coloring = colorings[name];
  expect(shadeOf(name, sampled, index, rangeOf(coloring, boundsOf(name, episode))).side).toBe(side);
});

test("the size of a value is its strength, up to full color", () => {
  const range = { low: -2, high: 1, full: 2 };
  expect(shade(colorings.advantage, -1, range)).toEqual({ side: "negative", strength: 0.5 });
  expect(shade(colorings.advantage, 50, range).strength).toBe(1);
});

test("versions before the range of the run have the lightest shade", () =>
  expect(shade(colorings.version, 1, { low: 5, high: 9, full: 4 })).toEqual({ side: "plain", strength: 0.15 }));

test("a value for all tokens colors each", () => {
  const one: SampledTokens = { ids: [1, 2], logprobs: -1, mask: 1, version: 0, advantage: -1 };
  expect(shadeOf("advantage", one, 1, { low: -1, high: -1, full: 1 }).side).toBe("negative");
});

test.each([
  [" the", 5, " the"],
  ["", 5, "⟨5⟩"],
  [undefined, 5, "⟨5⟩"],
  ["\ufffd", 5, "⟨5⟩"],
  ["\u001b[31m", 5, "␛[31m"],
])("the token %j is shown as text", (piece, id, text) => expect(tokenText(piece, id)).toBe(text));

test("finds the tokens of the thinking", () => {
  const pieces = ["<think>", "so", " 4", "</think>", "4"];
  const reply = { text: "", content: "4", thinking: "so 4", toolCalls: [], problems: [] };
  expect(thinkingRange({ reply, sampled: { ...sampled, pieces } })).toEqual({ from: 1, to: 3 });
  expect(thinkingRange({ reply, sampled })).toEqual({ from: 0, to: 0 });
});
