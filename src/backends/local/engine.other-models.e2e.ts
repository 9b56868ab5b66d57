/** References and critics from another model than the engine's, in workers of their own. */
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { lora, madeUpSequences, ordinary } from "../../../conformance/tools.ts";
import { valueLoss } from "../../algorithms/critic.ts";
import { makeTinyModel, makeTinyRewardModel } from "../../base/python.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { totalsOf } from "../../trajectories/batch.ts";
import type { Engine } from "../engine.ts";
import { openLocalEngine } from "./engine.ts";

const root = temporaryFolder("other-models");
const [model, other, judge, stranger] = [
  join(root, "model"),
  join(root, "other"),
  join(root, "judge"),
  join(root, "x"),
];
const open = (name: string) =>
  openLocalEngine({ model: name, device: "cpu", dtype: "float32", threads: 1, cacheDir: join(root, "cache") });
let engine: Engine;

beforeAll(async () => {
  await makeTinyModel(model);
  await makeTinyModel(other, 1);
  await makeTinyRewardModel(judge, { tokenizer: "of the language model" });
  await makeTinyRewardModel(stranger);
  engine = await open(model);
});
afterAll(() => engine?.close());

it("a reference gives the other model's log-probabilities", async () => {
  const sequences = madeUpSequences(engine, 4);
  const reference = await engine.createLearner({ adapter: { kind: "none" }, model: other });
  const plain = await open(other);
  try {
    const base = await plain.createLearner({ adapter: { kind: "none" } });
    const { logprobs } = await reference.forward(sequences, {});
    expect(logprobs).toEqual((await base.forward(sequences, {})).logprobs);
    const own = await engine.createLearner({ adapter: { kind: "none" } });
    expect((await own.forward(sequences, {})).logprobs).not.toEqual(logprobs);
  } finally {
    await plain.close();
    await reference.close();
  }
});

it("a critic from a reward model starts with its scores, and is trained and restored", async () => {
  const sequences = madeUpSequences(engine, 3);
  const spec = { adapter: lora(), head: "value", model: judge } as const;
  const critic = await engine.createLearner(spec);
  expect(critic.maxLength).toBe(512);
  const { values, offsets } = await critic.forward(sequences, { values: true });
  const scorer = await engine.createScorer!(judge);
  const prefixes = sequences.flatMap(({ tokens, trained }) =>
    [...trained.keys()].filter((at) => trained[at] === 1).map((at) => tokens.slice(0, at + 1)),
  );
  const scores = await scorer.score(prefixes);
  expect(Math.max(...scores.map((score, index) => Math.abs(score - values![index]!)))).toBeLessThan(1e-4);
  expect(Math.max(...scores)).toBeGreaterThan(0.01);

  // A batch whose returns are 1 everywhere: training moves the values.
  const batch = { sequences, offsets, totals: totalsOf(offsets), groups: new Int32Array(3), roles: ["a", "a", "a"] };
  const ones = new Float32Array(values!.length).fill(1);
  const returns = { advantages: ones, samplerLogprobs: ones, returns: ones };
  await critic.forwardBackward(sequences, valueLoss({ ...batch, ...returns }, { aggMode: "token-mean", clip: null }));
  expect((await critic.optimStep(ordinary)).applied).toBe(true);
  const trained = await critic.forward(sequences, { values: true });
  expect(trained.values).not.toEqual(values);
  await critic.saveState(join(root, "state"));
  const again = await engine.createLearner(spec);
  await again.loadState(join(root, "state"), { optimizer: true });
  expect((await again.forward(sequences, { values: true })).values).toEqual(trained.values);
  await Promise.all([critic.close(), again.close()]);
});

it("a model with another vocabulary is refused", async () => {
  const spec = { adapter: lora(), head: "value", model: stranger } as const;
  await expect(engine.createLearner(spec)).rejects.toThrow(/has a different vocabulary from .*: token \d+ is/);
});
