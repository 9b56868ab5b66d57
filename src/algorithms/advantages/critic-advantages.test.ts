import { expect, test } from "vitest";
import { estimatorPresets } from "../estimators/estimator.ts";
import { criticAdvantages } from "./critic-advantages.ts";
import { sequencesThatNeed } from "./estimate-advantages.ts";

test("the last token of a judged sequence gets its reward, each token pays its penalty; others keep their advantages", () => {
  const options = { ...estimatorPresets.rllm, estimator: "grpo", byRole: { solver: "gae" } };
  const judged = sequencesThatNeed("values", ["solver", "judge", "solver"], options);
  expect([...judged]).toEqual([0, 2]);
  const batch = { advantages: Float32Array.of(9, 9, 7), offsets: Int32Array.of(0, 2, 3, 3) };
  const given = { rewards: Float32Array.of(1, 1, 7), values: Float32Array.of(0.5, 0.25, 0) };
  const plain = criticAdvantages(batch, judged, given, { gamma: 1, lambda: 0.5 });
  // delta = [0.25 - 0.5, 1 - 0.25] = [-0.25, 0.75]
  expect([...plain.advantages]).toEqual([0.125, 0.75, 7]);
  expect([...plain.returns]).toEqual([0.625, 1, 0]);
  const penalties = Float32Array.of(0.5, 0.25, 0);
  const paid = criticAdvantages(batch, judged, { ...given, penalties }, { gamma: 1, lambda: 0.5 });
  // delta = [-0.75, 0.5]
  expect([...paid.advantages]).toEqual([-0.5, 0.5, 7]);
});
