import { expect, it } from "vitest";
import {
  lora,
  madeUpSequences,
  madeUpWeights,
  numTrained,
  plainDescent,
  step,
  withPolicy,
} from "../../conformance/tools.ts";
import type { TokensLoss } from "../algorithms/distillation.ts";
import type { PolicyLossOptions } from "../algorithms/policy-loss.ts";
import { policyLoss } from "../algorithms/policy-loss.ts";
import { smallBatches, tinyEngine } from "../backends/local/tiny-engine.fixture.ts";
import { learnerTeacher } from "../backends/teachers.ts";
import { runPython } from "../base/python.fixture.ts";
import { totalsOf } from "../trajectories/batch.ts";
import type { TrainingBatch, TrajectoryGroup } from "../trajectories/types.ts";
import { askTeachers, learnFromTeacher, type TeacherTerm } from "./teachers.ts";

const { at, engine } = tinyEngine("teacher", smallBatches);

/** Steps so large that the weights they are added to do not round them. */
const rate = 1e4;
const count = 5;
const tokens = { kind: "tokens", count, maxLoss: null, leastLogprob: null, beta: 0, tail: false } as const;
const jsd = (beta: number, tail: boolean): TokensLoss => ({ ...tokens, divergence: "jsd", beta, tail });

const cases: readonly TeacherTerm["loss"][] = [
  ...(["k2", "k3", "abs"] as const).map((estimator) => ({ kind: "estimator", estimator, maxLoss: null }) as const),
  ...(["forward_kl_topk", "cross_entropy_topk", "reverse_kl_topk"] as const).map((divergence) => ({
    ...tokens,
    divergence,
  })),
  ...[0, 0.3, 1].flatMap((beta) => [jsd(beta, true), ...(beta === 1 ? [] : [jsd(beta, false)])]),
];

it("each loss, its gradient norm and its optimizer step equal autograd's", async () => {
  const sequences = madeUpSequences(engine(), 5);
  const size = numTrained(sequences);
  const strong = await engine().createLearner({ adapter: { kind: "none" } });
  await withPolicy(engine(), lora(), async ({ learner, sampler }) => {
    for (const seed of [1, 2]) await step(learner, sequences, madeUpWeights(size, seed));
    await learner.export(at("before"), "adapter");
    await learner.saveState(at("state"));
    const { logprobs, offsets } = await learner.forward(sequences, {});
    const batch: TrainingBatch = {
      ...{ sequences, offsets, samplerLogprobs: logprobs, totals: totalsOf(offsets) },
      advantages: new Float32Array(size),
      scores: Float32Array.from({ length: size }, (_, token) => token),
      groups: new Int32Array(sequences.length),
      roles: sequences.map(() => "solver"),
    };
    const group: TrajectoryGroup = { id: "t:solver", taskId: "t", role: "solver", members: [] };
    const named = { name: "strong", teacher: learnerTeacher(strong) };
    const teaching = { teacherOf: () => named, promptOf: undefined, maxLength: 1000, count };
    const scores = await askTeachers(teaching, batch, [], [group]);
    const options: PolicyLossOptions = {
      ...{ lossFn: "ppo", epsClip: 0.2, epsClipHigh: null, aggMode: null, trainsAll: true },
    };
    const got: { loss: number; norm: number; outputs: number }[] = [];
    const asked: object[] = [];
    for (const [index, loss] of cases.entries()) {
      await sampler.load(await learner.loadState(at("state"), { optimizer: false }));
      const taught = learnFromTeacher(learner, batch, scores, { loss, coefficient: 1 }, () => 1 / size);
      const result = await taught.forwardBackward(sequences, policyLoss(batch, options));
      const { gradNorm } = await learner.optimStep(plainDescent(rate));
      await learner.export(at(`after-${index}`), "adapter");
      got.push({ loss: result.loss, norm: gradNorm, outputs: result.outputs.logprobs.length });
      const mode = loss.kind === "estimator" ? loss.estimator : loss.divergence;
      asked.push({ ...loss, mode, after: at(`after-${index}`) });
    }
    const { tokens: ids, logprobs: likely } = scores.likely!;
    const rows = (values: ArrayLike<number>) =>
      Array.from({ length: size }, (_, token) => Array.from(values).slice(token * count, (token + 1) * count));
    const expected = JSON.parse(
      await runPython("check_teacher.py", [], {
        ...{ base: at("model"), before: at("before"), rate, cases: asked },
        sequences: sequences.map((sequence) => [...sequence.tokens]),
        trained: sequences.map(({ trained }) => [...trained]),
        ...{ teacher: [...scores.logprobs], ids: rows(ids), likely: rows(likely) },
      }),
    ) as { loss: number; norm: number; error: number }[];
    const table = cases.map((loss, index) => {
      const [own, theirs] = [got[index]!, expected[index]!];
      return {
        name: JSON.stringify(loss),
        loss: Math.abs(own.loss - theirs.loss) / Math.max(Math.abs(theirs.loss), 0.1),
        norm: Math.abs(own.norm / theirs.norm - 1),
        step: theirs.error,
      };
    });
    console.table(table.map(({ name: _, ...row }, index) => ({ ...row, ...got[index] })));
    expect(got.map(({ outputs }) => outputs)).toEqual(cases.map(() => size));
    for (const { name, ...apart } of table) {
      for (const [what, error] of Object.entries(apart)) expect(error, `${name}: ${what}`).toBeLessThan(2e-5);
    }
  });
  await strong.close();
}, 240_000);
