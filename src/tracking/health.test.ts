import { describe, expect, it } from "vitest";
import { type ConfigInput, configSchema } from "../config/schema.ts";
import type { Metrics, StepMetrics } from "./events.ts";
import { health } from "./health.ts";

const config = (input: ConfigInput = {}) => configSchema.parse(input);
const course = (...steps: Metrics[]): StepMetrics[] => steps.map((metrics, index) => ({ step: index + 1, metrics }));
const repeat = (count: number, metrics: Metrics) => Array.from({ length: count }, () => metrics);
const rewards = (...values: number[]) => course(...values.map((value) => ({ "reward/mean": value })));
const noise = (index: number) => 0.02 * Math.sin(index * 2.4);

/** Everything said over a course, step by step. */
const said = (history: StepMetrics[], settings = config()) =>
  history.flatMap((_, index) => health(history.slice(0, index + 1), settings).map((text) => [index + 1, text]));

const cut = { "response_length/clip_ratio": 0.94 };
const easy = { "batch/a/fractions/effective": 0, "batch/a/fractions/too_easy": 0.9, "batch/a/fractions/too_hard": 0.1 };
const hard = { "batch/a/fractions/effective": 0, "batch/a/fractions/too_easy": 0, "batch/a/fractions/too_hard": 1 };
const same = { "batch/a/fractions/effective": 0.02, "batch/a/fractions/too_easy": 0, "batch/a/fractions/too_hard": 0 };
const learning = { "batch/a/fractions/effective": 0.4 };
const entropy = (value: number) => ({ "actor/entropy": value });

describe("health", () => {
  it.each([
    [
      "cut replies",
      course(cut, cut, cut),
      [[2, /94% of replies hit max_tokens; raise data\.max_response_length \(now 2048\)/]],
    ],
    ["one unlucky step", course(cut, { "response_length/clip_ratio": 0 }), []],
    [
      "cut replies, again after they had cleared",
      course(cut, cut, ...repeat(2, { "response_length/clip_ratio": 0 }), cut, cut),
      [
        [2, /hit/],
        [6, /hit/],
      ],
    ],
    [
      "rewritten histories",
      course({ "batch/num_sequences": 6, "batch/dropped_sequences/token_mismatch": 2 }),
      [[1, /25% of sequences were dropped.*rllm\.filter_token_mismatch=false/]],
    ],
    [
      "thinking left out by the template",
      course({ "batch/num_sequences": 8, "batch/sequence_starts/reasoning_dropped": 3 }),
      [[1, /3 turns were trained as sequences of their own; rllm\.accumulate_reasoning=true/]],
    ],
    ["all solved", course(learning, easy, easy), [[3, /"a".*harder tasks/]]],
    ["all failed", course(learning, hard, hard, hard), [[3, /easier tasks or partial rewards.*rllm\.rollout\.n/]]],
    ["all the same", course(same, same), [[2, /sampling\.train\.temperature/]]],
    ["a batch that learns", course(...repeat(5, learning)), []],
    [
      "entropy collapse",
      course(...[1, 0.9, 0.5, 0.03, 0.02, 0.01].map(entropy)),
      [[6, /from 1\.0 to 0\.020 nats.*kl_beta/]],
    ],
    ["entropy that falls a little", course(...[1, 0.9, 0.5, 0.3, 0.2, 0.1].map(entropy)), []],
    ["bfloat16's mismatch", course({ "rollout/logprob_diff_mean": 0.05 }), []],
    [
      "a mismatch",
      course({ "rollout/logprob_diff_mean": 0.31 }, { "rollout/logprob_diff_mean": 0.4 }),
      [[1, /0\.31 nats.*local\.dtype=float32/]],
    ],
    [
      "failed rollouts",
      course({ "batch/termination_reason/error": 0.08, "batch/termination_reason/timeout": 0.04 }),
      [[1, /12% of rollouts failed.*rllm\.workflow\.timeout/]],
    ],
    [
      "unknown rewards",
      course({ "groups/num_trajs_before_filter": 128, "groups/dropped_trajs/unknown_reward": 32 }),
      [[1, /25% of trajectories have no reward/]],
    ],
    [
      "a dropped update",
      course({ "update/dropped_not_finite": 1 }),
      [[1, /not finite.*training\.learning_rate \(now 0\.00002\).*local\.dtype/]],
    ],
    ["a gradient without a norm", course({ "actor/grad_norm": Number.POSITIVE_INFINITY }), [[1, /not finite/]]],
    [
      "a reward that collapses",
      rewards(0.2, 0.4, 0.6, 0.8, 0.9, 0.9, 0.5, 0.1, 0.1, 0.1),
      [[8, /from 0\.867 at its best to 0\.500.*resume_from_path/]],
    ],
    [
      "a reward that rises",
      rewards(...Array.from({ length: 40 }, (_, index) => 0.2 + 0.015 * index + noise(index))),
      [],
    ],
    ["a reward that wavers", rewards(0.5, 0.45, 0.55, 0.4, 0.5, 0.45, 0.5, 0.55), []],
    [
      "a reward that stays",
      rewards(...Array.from({ length: 25 }, (_, index) => 0.3 + noise(index))),
      [[20, /stayed at 0\.\d+ for 20 steps; raise training\.learning_rate/]],
    ],
    ["a reward that stays at the top", rewards(...repeat(30, {}).map(() => 0.99)), []],
    ["nothing known", course(...repeat(30, {})), []],
  ])("of %s", (_what, history, expected) => {
    expect(said(history)).toEqual(expected.map(([step, text]) => [step, expect.stringMatching(text as RegExp)]));
  });

  it("does not propose what is set already", () => {
    const [[, text] = []] = said(
      course({ "rollout/logprob_diff_mean": 0.31 }),
      config({ local: { dtype: "float32" } }),
    );
    expect(text).toMatch(/hone doctor/);
    expect(text).not.toMatch(/dtype/);
  });

  it("is silent before the first step", () => expect(health([], config())).toEqual([]));
});
