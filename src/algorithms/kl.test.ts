import { expect, test } from "vitest";
import { klPenalty, nextKlWeight, penalizeAdvantages } from "./kl.ts";

const offsets = Int32Array.of(0, 2, 3);

test("a penalty is the weighted KL of each token; the mean is taken over the sequences' means", () => {
  const { penalties, kl } = klPenalty(Float32Array.of(-1, -2, -3), Float32Array.of(-2, -2, -1), offsets, {
    weight: 0.5,
    estimator: "k1",
  });
  expect([...penalties]).toEqual([0.5, 0, -1]);
  expect(kl).toBeCloseTo((0.5 - 2) / 2);
  expect(klPenalty(new Float32Array(0), new Float32Array(0), Int32Array.of(0), { weight: 1, estimator: "k3" }).kl).toBe(
    0,
  );
});

test("penalties lower the advantages of earlier tokens", () => {
  const advantages = penalizeAdvantages(Float32Array.of(1, 1, 1), Float32Array.of(0.5, 0.25, 0), offsets, { gamma: 1 });
  expect([...advantages]).toEqual([0.25, 0.75, 1]);
  const alone = penalizeAdvantages(new Float32Array(3), Float32Array.of(3, 1, 2), offsets, { gamma: 0 });
  expect([...alone]).toEqual([-3, -1, -2]);
});

test("an adaptive weight grows while the KL is above its target, by at most a fifth of the share of the horizon", () => {
  const options = { target: 1, horizon: 100 };
  expect(nextKlWeight(0.1, 1, 50, options)).toBeCloseTo(0.1);
  expect(nextKlWeight(0.1, 9, 50, options)).toBeCloseTo(0.11);
  expect(nextKlWeight(0.1, 0, 50, options)).toBeCloseTo(0.09);
  expect(nextKlWeight(0.1, 9, 50, { ...options, target: null })).toBe(0.1);
});
