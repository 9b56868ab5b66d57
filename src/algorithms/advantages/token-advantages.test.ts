import { expect, test } from "vitest";
import { estimatorPresets } from "../estimators/estimator.ts";
import { penalizeAdvantages } from "../kl/kl-penalty.ts";
import { discountAdvantages, normalizeAdvantages, type TokenAdvantageOptions } from "./token-advantages.ts";

const options: TokenAdvantageOptions = {
  ...estimatorPresets.rllm,
  ...{ estimator: "grpo", gamma: 1, whiten: false, clip: 0 },
};
const batch = {
  advantages: Float32Array.of(1, 1, 1, -2, -2, 4),
  offsets: Int32Array.of(0, 3, 5, 5, 6),
  roles: ["solver", "solver", "judge", "judge"],
};
const sum = (values: Float32Array) => values.reduce((total, value) => total + value, 0);

test("without options, advantages do not change", () => {
  const shaped = normalizeAdvantages(batch, options);
  expect(shaped).toEqual({ advantages: batch.advantages, metrics: {} });
});

test("a discount does not change the last token of each sequence", () => {
  expect([...discountAdvantages(batch, 0.5)]).toEqual([0.25, 0.5, 1, -1, -2, 4]);
  expect(discountAdvantages(batch, 1)).toEqual(batch.advantages);
});

test("an estimator's whitening covers only the tokens of its roles", () => {
  const { advantages } = normalizeAdvantages(batch, { ...options, byRole: { solver: "reinforce_plus_plus" } });
  expect(sum(advantages.slice(0, 5))).toBeCloseTo(0, 6);
  expect(advantages[5]).toBe(4);
  const baseline = { ...options, estimator: "reinforce_plus_plus_baseline" };
  expect(normalizeAdvantages(batch, baseline).advantages).toEqual(batch.advantages);
  const byVerl = normalizeAdvantages(batch, { ...baseline, ...estimatorPresets.verl }).advantages;
  expect(sum(byVerl.slice(0, 5))).toBeCloseTo(0, 6);
  expect(byVerl[5]).toBe(0);
});

test("a KL in the reward is part of the returns before whitening, as in verl", () => {
  const penalties = Float32Array.of(0.1, 0.2, 0.3, 0, -0.4, 0.5);
  const gamma = 0.5;
  const penalised = penalizeAdvantages(discountAdvantages(batch, gamma), penalties, batch.offsets, { gamma });
  // r_t = score at the last token - penalty_t, G_t = r_t + gamma G_{t+1}, by hand.
  const returns = [0.25 - 0.1 - 0.1 - 0.075, 0.5 - 0.2 - 0.15, 1 - 0.3, -1 + 0.2, -2 + 0.4, 4 - 0.5];
  returns.forEach((value, token) => {
    expect(penalised[token]).toBeCloseTo(value, 6);
  });
  const everyone = { ...options, estimator: "reinforce_plus_plus" };
  const roles = batch.roles.map(() => "solver");
  const { advantages } = normalizeAdvantages({ ...batch, roles, advantages: penalised }, everyone);
  const mean = returns.reduce((total, value) => total + value, 0) / 6;
  const deviation = Math.sqrt(returns.reduce((total, value) => total + (value - mean) ** 2, 0) / 5);
  returns.forEach((value, token) => {
    expect(advantages[token]).toBeCloseTo((value - mean) / deviation, 5);
  });
});

test("all tokens are whitened, then bounded", () => {
  const { advantages } = normalizeAdvantages(batch, { ...options, whiten: true });
  expect(sum(advantages)).toBeCloseTo(0, 6);
  const bounded = normalizeAdvantages(batch, { ...options, clip: 2 });
  expect([...bounded.advantages]).toEqual([1, 1, 1, -2, -2, 2]);
  expect(bounded.metrics["advantage/clip_fraction"]).toBeCloseTo(1 / 6);
});

test("no tokens, one token and equal tokens give no NaN", () => {
  const every = { ...options, estimator: "reinforce_plus_plus", whiten: true, clip: 1 };
  const empty = { advantages: new Float32Array(), offsets: Int32Array.of(0), roles: [] };
  expect(normalizeAdvantages(empty, every).advantages).toHaveLength(0);
  expect(discountAdvantages(empty, 0.5)).toHaveLength(0);
  const one = { advantages: Float32Array.of(3), offsets: Int32Array.of(0, 1, 1), roles: ["a", "a"] };
  expect([...normalizeAdvantages(one, every).advantages]).toEqual([0]);
  const equal = { advantages: Float32Array.of(0.1, 0.1), offsets: Int32Array.of(0, 1, 2), roles: ["a", "a"] };
  expect([...normalizeAdvantages(equal, every).advantages]).toEqual([0, 0]);
});
