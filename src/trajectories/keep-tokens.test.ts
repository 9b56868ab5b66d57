import { expect, test } from "vitest";
import type { Media } from "../images/types.ts";
import { keepTokens, totalsOf } from "./batch.ts";
import type { TrainingBatch } from "./types.ts";

const batch: TrainingBatch = {
  sequences: [
    { tokens: Int32Array.of(1, 2, 3, 4), trained: Uint8Array.of(1, 0, 1) },
    { tokens: Int32Array.of(5, 6), trained: Uint8Array.of(1) },
  ],
  offsets: Int32Array.of(0, 2, 3),
  advantages: Float32Array.of(1, 2, 3),
  samplerLogprobs: Float32Array.of(-1, -2, -3),
  oldLogprobs: Float32Array.of(-4, -5, -6),
  groups: Int32Array.of(0, 0),
  roles: ["solver", "solver"],
  totals: totalsOf(Int32Array.of(0, 2, 3)),
};

test("tokens that are not kept stay in their sequences and are no longer trained", () => {
  const kept = keepTokens(batch, Uint8Array.of(0, 1, 0));
  expect(kept.sequences.map(({ tokens }) => tokens.length)).toEqual([4, 2]);
  expect(kept.sequences.map(({ trained }) => [...trained])).toEqual([[0, 0, 1], [0]]);
  expect([...kept.offsets]).toEqual([0, 1, 1]);
  expect([[...kept.advantages], [...kept.samplerLogprobs], [...kept.oldLogprobs!]]).toEqual([[2], [-2], [-5]]);
  expect(kept.totals).toEqual({ tokens: 1, sequences: 1, longest: 1 });
  expect(keepTokens(batch, Uint8Array.of(1, 1, 1))).toBe(batch);
});

test("images and experts stay", () => {
  const media = [{ at: 0, tokens: 1, hash: "a" }] as unknown as Media[];
  const routing = { experts: Int16Array.of(0, 1, 2), layers: 1, expertsOfToken: 1 };
  const sequences = [{ ...batch.sequences[0]!, media, routing }, batch.sequences[1]!];
  const [kept] = keepTokens({ ...batch, sequences }, Uint8Array.of(0, 1, 0)).sequences;
  expect([kept?.media, kept?.routing]).toEqual([media, routing]);
});
