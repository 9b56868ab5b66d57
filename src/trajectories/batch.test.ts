import fc from "fast-check";
import { expect, test } from "vitest";
import type { Media } from "../images/images.ts";
import { asWhole, keepTokens, selectSequences, splitBatch, toBatch, toSequences, totalsOf } from "./batch.ts";
import { rewardGroup, sampleEpisode, sampleStep, sampleTrajectory } from "./sample-episodes.fixture.ts";
import type { Step, TrainingBatch, TrajectoryGroup } from "./types.ts";

const ids = (minLength: number) => fc.array(fc.integer({ min: 0, max: 3 }), { minLength, maxLength: 4 });

/** Turns: what the environment adds, what the model says, and whether the client rewrites history before the turn. */
const turns = fc.array(fc.record({ added: ids(1), reply: ids(0), rewrite: fc.boolean(), foreign: fc.boolean() }), {
  maxLength: 6,
});

function stepsOf(drawn: { added: number[]; reply: number[]; rewrite: boolean; foreign: boolean }[]): Step[] {
  let history: number[] = [];
  let turn = 0;
  return drawn.map(({ added, reply, rewrite, foreign }) => {
    // 9 never occurs elsewhere, so a rewritten prompt shares no prefix with the one before it.
    const prompt = rewrite ? [9 + ++turn, ...added] : [...history, ...added];
    history = [...prompt, ...reply];
    return sampleStep(prompt, reply, { policyVersion: foreign ? -1 : 0 });
  });
}

test("sequences reproduce each step's tokens, and the mask is exactly the sampled spans", () => {
  fc.assert(
    fc.property(turns, (drawn) => {
      const steps = stepsOf(drawn);
      const { sequences, causes } = toSequences(sampleTrajectory({ steps }));
      expect(causes.length).toBe(drawn.slice(1).filter(({ rewrite }) => rewrite).length);
      let index = -1;
      const expected: { trained: Set<number>; logprobs: number[]; last: Step }[] = [];
      steps.forEach((step, turn) => {
        if (turn === 0 || drawn[turn]!.rewrite) expected[++index] = { trained: new Set(), logprobs: [], last: step };
        const run = expected[index]!;
        run.last = step;
        if (step.policyVersion < 0) return;
        for (const token of step.tokens.keys()) run.trained.add(step.promptTokens.length + token);
        run.logprobs.push(...step.logprobs);
      });
      expect(sequences).toHaveLength(expected.length);
      sequences.forEach(({ tokens, trained, samplerLogprobs, malformed }, position) => {
        const run = expected[position]!;
        expect(malformed).toBe(false);
        expect([...tokens]).toEqual([...run.last.promptTokens, ...run.last.tokens]);
        expect(trained).toHaveLength(tokens.length - 1);
        // trained[i] is about token i + 1
        expect([...trained.keys()].filter((at) => trained[at] === 1).map((at) => at + 1)).toEqual([...run.trained]);
        expect([...samplerLogprobs]).toEqual(run.logprobs);
      });
    }),
  );
});

test.each<[string, Step[], number[][]]>([
  ["a prompt that extends the last step", [sampleStep([1, 2], [3]), sampleStep([1, 2, 3, 4], [5])], [[1, 2, 3, 4, 5]]],
  [
    "the same prompt again",
    [sampleStep([1], [2]), sampleStep([1], [3])],
    [
      [1, 2],
      [1, 3],
    ],
  ],
  [
    "a sampled token changed",
    [sampleStep([1], [2, 3]), sampleStep([1, 2, 7, 4], [5])],
    [
      [1, 2, 3],
      [1, 2, 7, 4, 5],
    ],
  ],
  [
    "an earlier token changed",
    [sampleStep([1, 2], [3]), sampleStep([8, 2, 3], [5])],
    [
      [1, 2, 3],
      [8, 2, 3, 5],
    ],
  ],
  [
    "a history cut short",
    [sampleStep([1, 2], [3]), sampleStep([1, 2], [4])],
    [
      [1, 2, 3],
      [1, 2, 4],
    ],
  ],
])("%s", (_, steps, wanted) => {
  const { sequences, causes } = toSequences(sampleTrajectory({ steps }));
  expect(sequences.map(({ tokens }) => [...tokens])).toEqual(wanted);
  expect(causes).toEqual(Array.from({ length: wanted.length - 1 }, () => "unexplained"));
});

const groupOf = (id: string, ...members: Step[][]): TrajectoryGroup => ({
  ...rewardGroup(id, []),
  members: members.map((steps, rollout) => {
    const trajectory = sampleTrajectory({ steps });
    return { episode: sampleEpisode(`t:${rollout}`, { trajectories: [trajectory] }), trajectory, reward: 0 };
  }),
});

test("a batch is ragged over trained tokens, each with its member's advantage", () => {
  const groups = [
    groupOf("a:solver", [sampleStep([1, 2], [3, 4]), sampleStep([1, 2, 3, 4, 5], [6])], [sampleStep([1, 2], [7])]),
    groupOf("a:judge", [sampleStep([1], [2]), sampleStep([8], [3])]),
  ];
  const { batch, metrics } = toBatch(groups, [[1.5, -1.5], [0.25]], { maxLength: 6 });
  expect(batch.sequences.map(({ tokens }) => [...tokens])).toEqual([
    [1, 2, 3, 4, 5, 6],
    [1, 2, 7],
    [1, 2],
    [8, 3],
  ]);
  expect(batch.sequences.map(({ trained }) => [...trained])).toEqual([[0, 1, 1, 0, 1], [0, 1], [1], [1]]);
  expect([...batch.offsets]).toEqual([0, 3, 4, 5, 6]);
  expect([...batch.advantages]).toEqual([1.5, 1.5, 1.5, -1.5, 0.25, 0.25]);
  expect([...batch.samplerLogprobs]).toEqual([3, 4, 6, 7, 2, 3].map((token) => -token / 8));
  expect([...batch.groups]).toEqual([0, 0, 1, 1]);
  expect(batch.roles).toEqual(["solver", "solver", "judge", "judge"]);
  expect(batch.totals).toEqual({ tokens: 6, sequences: 4, longest: 3 });
  expect(metrics).toMatchObject({
    "batch/sequence_breaks": 1,
    "batch/num_sequences": 4,
    "batch/steps_per_traj/mean": 5 / 3,
    "batch/step_response_length/max": 4,
    "batch/action_token_ratio/min": 0.75,
    "batch/merge_compression_ratio": 5 / 4,
  });
});

test("steps that cannot be trained on are dropped and counted by cause", () => {
  const sound = sampleStep([1], [2]);
  const groups = [
    groupOf(
      "a:solver",
      [sound],
      [sampleStep([1, 2, 3], [4, 5])],
      [sampleStep([1], [])],
      [sampleStep([1], [2], { policyVersion: -1 })],
      [sampleStep([1], [2, 3], { logprobs: Float32Array.of(-1) })],
      [sampleStep([1], [2], { logprobs: Float32Array.of(Number.NaN) })],
      [sampleStep([], [2])],
      [sampleStep([], [])],
    ),
  ];
  const { batch, metrics } = toBatch(groups, [[1, 2, 3, 4, 5, 6, 7, 8]], { maxLength: 4 });
  expect(batch.sequences).toHaveLength(1);
  expect(metrics).toMatchObject({
    "batch/dropped_sequences/max_length": 1,
    "batch/dropped_sequences/nothing_sampled": 2,
    "batch/dropped_malformed_sequences": 4,
    "batch/num_sequences": 1,
  });
});

test("interleaved conversations are separate sequences", () => {
  const steps = [
    sampleStep([1], [2]),
    sampleStep([5], [6], { starts: "new_conversation" }),
    sampleStep([1, 2, 3], [4]),
    sampleStep([5, 6, 7], [8]),
    sampleStep([1, 2, 9], [9], { starts: "branched" }),
  ];
  const { sequences, causes } = toSequences(sampleTrajectory({ steps }));
  expect(sequences.map(({ tokens }) => [...tokens])).toEqual([
    [1, 2, 3, 4],
    [5, 6, 7, 8],
    [1, 2, 9, 9],
  ]);
  expect(sequences.map(({ trained }) => [...trained])).toEqual([
    [1, 0, 1],
    [1, 0, 1],
    [0, 0, 1],
  ]);
  expect(causes).toEqual(["new_conversation", "branched"]);
});

test("a trajectory whose history was rewritten is dropped if configured, and counted by cause", () => {
  const first = sampleStep([1], [2]);
  const groups = [
    groupOf(
      "a:agent",
      [first, sampleStep([1, 2, 3], [4])],
      [first, sampleStep([1, 7, 3], [4], { starts: "history_rewritten" })],
      [first, sampleStep([1, 3], [4], { starts: "reasoning_dropped" })],
      [first, sampleStep([5], [4], { starts: "new_conversation" })],
    ),
  ];
  const counts = {
    "batch/sequence_breaks": 2,
    "batch/sequence_starts/history_rewritten": 1,
    "batch/sequence_starts/reasoning_dropped": 1,
    "batch/sequence_starts/new_conversation": 1,
  };
  const make = (filterTokenMismatch: boolean) =>
    toBatch(groups, [[1, 2, 3, 4]], { maxLength: 9, filterTokenMismatch }).metrics;
  expect(make(false)).toMatchObject({
    ...counts,
    "batch/num_sequences": 7,
    "batch/dropped_sequences/token_mismatch": 0,
  });
  expect(make(true)).toMatchObject({
    ...counts,
    "batch/num_sequences": 5,
    "batch/dropped_sequences/token_mismatch": 2,
  });
});

test("steps and tokens can have their own advantages; a step whose advantages do not fit is not trained on", () => {
  const turns = [sampleStep([1], [2, 3]), sampleStep([1, 2, 3, 4], [5]), sampleStep([9], [6])];
  const { batch, metrics } = toBatch(
    [groupOf("a:solver", turns, turns, turns)],
    [
      [
        [0.5, [-1], 2],
        [Float32Array.of(1, 2), 3, Float32Array.of(4, 5)],
        [1, Number.NaN, 1],
      ],
    ],
    { maxLength: 10 },
  );
  expect([...batch.advantages]).toEqual([0.5, 0.5, -1, 2, 1, 2, 3, 1]);
  expect([...batch.offsets]).toEqual([0, 3, 4, 7, 8]);
  expect(metrics).toMatchObject({ "batch/dropped_sequences/advantage_mismatch": 2, "batch/num_sequences": 4 });
});

test.each([
  ["truncated", { truncated: true }, 1],
  ["overlong", { overlong: true }, 2],
  ["token_mismatch", { filterTokenMismatch: true }, 3],
] as const)("sequences that a filter leaves out are counted as %s", (cause, filter, dropped) => {
  const cut = sampleStep([1], [2], { stopReason: "length" });
  const fresh = [sampleStep([1], [2]), sampleStep([3], [4], { starts: "new_conversation" })];
  const rewritten = [sampleStep([1], [2]), sampleStep([3], [4], { starts: "history_rewritten" }), sampleStep([5], [6])];
  const group = groupOf("a:solver", [cut], fresh, rewritten);
  group.members[1]!.episode.termination = "max_turns_exceeded";
  const batchWith = (filters: object) => toBatch([group], [[1, 2, 3]], { maxLength: 9, ...filters });
  expect(batchWith({}).metrics[`batch/dropped_sequences/${cause}`]).toBe(0);
  const { batch, metrics } = batchWith(filter);
  expect(metrics[`batch/dropped_sequences/${cause}`]).toBe(dropped);
  expect(batch.sequences).toHaveLength(6 - dropped);
});

test("a batch without groups is empty", () => {
  const { batch, metrics } = toBatch([], [], { maxLength: 4 });
  expect(batch.sequences).toEqual([]);
  expect([...batch.offsets]).toEqual([0]);
  expect(batch.totals).toEqual({ tokens: 0, sequences: 0, longest: 0 });
  expect(Object.values(metrics).every(Number.isFinite)).toBe(true);
});

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

/** One sequence a member, each recognized by its advantage. */
function batchOf(sizes: readonly number[]): TrainingBatch {
  const groups = sizes.map((size, index) => rewardGroup(`${index}:solver`, Array<number>(size).fill(0)));
  let next = 0;
  const advantages = sizes.map((size) => Array.from({ length: size }, () => ++next));
  return toBatch(groups, advantages, { maxLength: 10 }).batch;
}

const sizes = fc.array(fc.integer({ min: 1, max: 6 }), { minLength: 1, maxLength: 8 });

test("minibatches contain every sequence once, evenly, in whole groups if there are enough", () => {
  fc.assert(
    fc.property(sizes, fc.integer({ min: 1, max: 6 }), fc.nat(), (drawn, wanted, seed) => {
      const batch = batchOf(drawn);
      const parts = splitBatch(batch, wanted, seed);
      const numbers = parts.map(({ advantages }) => [...advantages]);
      expect(parts).toHaveLength(Math.min(wanted, batch.sequences.length));
      expect(numbers.flat().sort((a, b) => a - b)).toEqual([...batch.advantages]);
      for (const own of numbers) expect(own).toEqual([...own].sort((a, b) => a - b));
      expect(
        parts.every(({ sequences, totals }) => sequences.length > 0 && totals.sequences === sequences.length),
      ).toBe(true);
      const lengths = numbers.map(({ length }) => length);
      expect(Math.max(...lengths) - Math.min(...lengths)).toBeLessThanOrEqual(Math.max(...drawn));
      if (drawn.length >= wanted) {
        const homes = parts.flatMap(({ groups }) => [...new Set(groups)]);
        expect(homes).toHaveLength(drawn.length);
      }
      expect(splitBatch(batch, wanted, seed)).toEqual(parts);
    }),
  );
});

test("the seed decides which groups go together; an empty batch has no minibatches", () => {
  const batch = batchOf([2, 2, 2, 2, 2, 2]);
  const splits = Array.from({ length: 20 }, (_, seed) =>
    JSON.stringify(splitBatch(batch, 2, seed).map(({ groups }) => [...groups])),
  );
  expect(new Set(splits).size).toBeGreaterThan(5);
  expect(splitBatch(batchOf([]), 3, 0)).toEqual([]);
});

test("a selection has every array and keeps the denominators of the whole batch", () => {
  const whole = batchOf([1, 2]);
  const batch = { ...whole, oldLogprobs: Float32Array.of(1, 2, 3), referenceLogprobs: Float32Array.of(4, 5, 6) };
  const part = selectSequences(batch, [2, 0]);
  expect([...part.advantages]).toEqual([3, 1]);
  expect([...part.oldLogprobs!]).toEqual([3, 1]);
  expect([...part.referenceLogprobs!]).toEqual([6, 4]);
  expect([...part.groups]).toEqual([1, 0]);
  expect(part.totals).toEqual({ tokens: 3, sequences: 3, longest: 1 });
  expect(asWhole(part).totals).toEqual({ tokens: 2, sequences: 2, longest: 1 });
  expect(selectSequences(whole, [0])).not.toHaveProperty("oldLogprobs");
});
