import { describe, expect, test } from "vitest";
import { uniforms } from "../../../random.ts";
import { changeEvidence } from "./change-evidence.ts";

const count = 200;
/** Independent values with this standard deviation. */
function noise(seed: number, deviation: number): Float32Array {
  const random = uniforms(seed);
  return Float32Array.from({ length: count }, () => (random() - 0.5) * Math.sqrt(12) * deviation);
}
const plus = (left: Float32Array, right: Float32Array) => left.map((value, index) => value + right[index]!);
const moved = noise(1, 0.05);

describe("changeEvidence", () => {
  test.each([
    ["nothing, exactly", () => new Float32Array(count), Number.NEGATIVE_INFINITY],
    ["the learner's, exactly", () => moved, Number.POSITIVE_INFINITY],
  ])("is certain where the server's change is %s", (_, server, evidence) => {
    expect(changeEvidence(moved, server(), 1e-5)).toBe(evidence);
  });

  test.each([0.01, 0.02, 0.04])("tells a change from none under noise of %f", (deviation) => {
    for (let seed = 2; seed < 40; seed++) {
      const other = noise(seed, deviation);
      expect(changeEvidence(moved, plus(moved, other), 1e-5)).toBeGreaterThan(6);
      expect(changeEvidence(moved, other, 1e-5)).toBeLessThan(-6);
    }
  });

  test("is weak where the noise hides the change", () => {
    for (let seed = 2; seed < 40; seed++) {
      const other = noise(seed, 0.5);
      expect(Math.abs(changeEvidence(moved, plus(moved, other), 1e-5))).toBeLessThan(6);
      expect(Math.abs(changeEvidence(moved, other, 1e-5))).toBeLessThan(6);
    }
  });

  test("is 0 if the learner's change is too small, also if there is none", () => {
    expect(changeEvidence(moved, new Float32Array(count), 0.06)).toBe(0);
    expect(changeEvidence(new Float32Array(count), moved, 0)).toBe(0);
  });
});
