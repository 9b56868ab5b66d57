import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type ConfigInput, configSchema } from "../config/schema.ts";
import type { Metrics, StepMetrics } from "./events.ts";
import { watchHealth } from "./health.ts";

const config = (input: ConfigInput = {}) => configSchema.parse(input);
const course = (...steps: Metrics[]): StepMetrics[] => steps.map((metrics, index) => ({ step: index + 1, metrics }));
const repeat = (count: number, metrics: Metrics) => Array.from({ length: count }, () => metrics);
const rewards = (...values: number[]) => course(...values.map((value) => ({ "reward/mean": value })));
const noise = (index: number) => 0.02 * Math.sin(index * 2.4);

/** All sentences over a series of steps, with their step. */
function said(history: StepMetrics[], settings = config(), health = watchHealth(settings)) {
  return history.flatMap(({ step, metrics }) => health(metrics).map((text): [number, string] => [step, text]));
}

const cut = { "response_length/clip_ratio": 0.94 };
const cutBy = (limit: string) => ({ ...cut, [`response_length/cut_off_by/${limit}`]: 0.9 });
const reward = (value: number) => ({ "reward/mean": value });
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
      [[2, /94% of replies were cut off, most by the limit of a reply; raise data\.max_response_length \(now 2048\)/]],
    ],
    ["one unlucky step", course(cut, { "response_length/clip_ratio": 0 }), []],
    [
      "cut replies, again after they had cleared",
      course(cut, cut, ...repeat(2, { "response_length/clip_ratio": 0 }), cut, cut),
      [
        [2, /cut off/],
        [6, /cut off/],
      ],
    ],
    // New conversations, branches and dropped thinking are more frequent, but they drop no sequence.
    ...(
      [
        ["history_rewritten", /send the history back unchanged, or set rllm\.filter_token_mismatch=false/],
        ["tools_changed", /send the same tools with each call of a conversation, or set/],
        ["options_changed", /send the same thinking options with each call/],
      ] as const
    ).map(([cause, advice]): [string, StepMetrics[], [number, RegExp][]] => [
      `dropped sequences are blamed on ${cause}, not on what drops none`,
      course({
        "batch/num_sequences": 6,
        "batch/dropped_sequences/token_mismatch": 2,
        "batch/sequence_starts/new_conversation": 9,
        "batch/sequence_starts/branched": 8,
        "batch/sequence_starts/reasoning_dropped": 7,
        [`batch/sequence_starts/${cause}`]: 2,
      }),
      [[1, new RegExp(`25% of sequences were dropped.*\\(most often: ${cause}\\); ${advice.source}`)]],
    ]),
    ...(
      [
        ["max_turns_exceeded", /rllm\.agent\.max_steps \(now \d+\)/],
        ["max_prompt_length_exceeded", /data\.max_prompt_length \(now \d+\)/],
        ["max_response_length_exceeded", /data\.max_response_length \(now \d+\)/],
      ] as const
    ).map(([reason, key]): [string, StepMetrics[], [number, RegExp][]] => [
      `rollouts without a reward because of ${reason} name the key`,
      course({
        "groups/num_trajs_before_filter": 16,
        "groups/dropped_trajs/unknown_reward": 12,
        [`batch/termination_reason/${reason}`]: 0.75,
      }),
      [[1, new RegExp(`75% of trajectories have no reward .*: 75% of rollouts ended at ${key.source}; raise it; see`)]],
    ]),
    [
      "thinking left out by the template",
      course({ "batch/num_sequences": 8, "batch/sequence_starts/reasoning_dropped": 3 }),
      [[1, /3 turns were trained as separate sequences; rllm\.accumulate_reasoning=true/]],
    ],
    ["all solved", course(learning, easy, easy), [[3, /"a".*harder tasks/]]],
    ["all failed", course(learning, hard, hard, hard), [[3, /easier tasks or partial rewards.*rllm\.rollout\.n/]]],
    ["all the same", course(same, same), [[2, /: raise rllm\.rollout\.n \(now 8\), or make the reward/]]],
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
    ["updates that reach the weights", course(...repeat(5, { "actor/update_lost_to_rounding": 0.1 })), []],
    [
      "updates that are rounded away",
      course(...repeat(5, { "actor/update_lost_to_rounding": 0.9 })),
      [[3, /90% of each update is lost.*raise training\.learning_rate \(now 0\.00002\) or set local\.dtype=float32/]],
    ],
    [
      "failed rollouts",
      course({ "batch/termination_reason/error": 0.08, "batch/termination_reason/timeout": 0.04 }),
      [[1, /12% of rollouts failed; `failure` in episodes\/ gives the reason$/]],
    ],
    [
      "failed rollouts of a known kind, which explain why all fail",
      course(...repeat(3, { ...hard, "batch/termination_reason/error": 0.9, "batch/failures/agent": 9 })),
      [[1, /90% of rollouts failed, most of them in the agent; `failure` in episodes\/ gives the reason$/]],
    ],
    [
      "rollouts that failed after replies that a limit cut off",
      course({
        "batch/num_episodes": 16,
        "batch/failed_episodes": 16,
        "batch/termination_reason/error": 0.125,
        "batch/failures/model": 14,
        "batch/failures/agent": 2,
      }),
      [[1, /100% of rollouts failed, most of them after replies that the agent could not use; /]],
    ],
    [
      "an agent that calls another model",
      course({ "groups/num_trajs_before_filter": 4, "groups/dropped_trajs/no_steps": 4 }),
      [[1, /100% of trajectories have no call of the trained model.*gatewayBaseURL\(\)/]],
    ],
    [
      "unknown rewards",
      course({ "groups/num_trajs_before_filter": 128, "groups/dropped_trajs/unknown_reward": 32 }),
      [[1, /25% of trajectories have no reward/]],
    ],
    [
      "side calls, which have no reward on purpose",
      course({
        "groups/num_trajs_before_filter": 128,
        "groups/dropped_trajs/side_call": 64,
        "batch/termination_reason/max_response_length_exceeded": 1,
      }),
      [],
    ],
    [
      "a dropped update",
      course({ "update/dropped_not_finite": 1 }),
      [[1, /not finite.*learning rate is not the cause.*local\.dtype=float32/]],
    ],
    [
      "a dropped update after others",
      course({ "update/optimizer_steps": 1 }, { "update/dropped_not_finite": 1 }),
      [[2, /not finite.*lower training\.learning_rate \(now 0\.00002\) or set local\.dtype=float32/]],
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
    [
      "replies cut off by the agent's own limit",
      course(cutBy("call"), cutBy("call")),
      [[2, /most by the agent's own max_tokens; raise it in the agent \(the configuration allows 2048\)/]],
    ],
    [
      "replies cut off by the sequence's limit",
      course(cutBy("max_length"), cutBy("max_length")),
      [[2, /raise training\.max_length \(now 32768\)/]],
    ],
    [
      "replies cut off by the model's limit",
      course(cutBy("context_window"), cutBy("context_window")),
      [[2, /context window; shorten the prompts/]],
    ],
    ["replies cut off on a solved task", course(...repeat(4, { ...cut, ...reward(0.95) })), []],
    [
      "entropy collapse on a solved task",
      course(...[1, 0.9, 0.5, 0.03, 0.02, 0.01].map((value) => ({ ...entropy(value), ...reward(0.95) }))),
      [],
    ],
    [
      "entropy collapse on a task solved by its graders' verdicts",
      course(...[1, 0.9, 0.03, 0.02, 0.01].map((value) => ({ ...entropy(value), "batch/solve_all": 0.95 }))),
      [],
    ],
    [
      "entropy collapse at half of the highest reward seen",
      course(...[1, 0.9, 0.03, 0.02, 0.01].map((value) => ({ ...entropy(value), ...reward(5), "reward/a/max": 10 }))),
      [[5, /the entropy has collapsed/]],
    ],
    [
      "tasks that all fail because replies are cut off",
      course(...repeat(3, { ...hard, ...cutBy("max_response_length") })),
      [[2, /raise data\.max_response_length/]],
    ],
    [
      "rollouts that run out of time",
      course({ "batch/termination_reason/timeout": 0.5 }),
      [[1, /50% of rollouts failed, most of them at a time limit.*rllm\.workflow\.workflow_args\.timeout=/]],
    ],
    [
      "a flat reward that another rule explains",
      course(...repeat(25, { ...reward(0), ...hard })),
      [[2, /nearly all fail every time/]],
    ],
    ["nothing known", course(...repeat(30, {})), []],
  ])("of %s", (_what, history, expected) => {
    expect(said(history)).toEqual(expected.map(([step, text]) => [step, expect.stringMatching(text as RegExp)]));
  });

  it("does not propose a setting that is set already", () => {
    const [[, text] = []] = said(
      course({ "rollout/logprob_diff_mean": 0.31 }),
      config({ local: { dtype: "float32" } }),
    );
    expect(text).toMatch(/hone doctor/);
    expect(text).not.toMatch(/dtype/);
  });

  it("names the sampling limit if that was set", () => {
    const settings = config({ rllm: { rollout: { train: { max_tokens: 64 } } } });
    const by = cutBy("max_response_length");
    expect(said(course(by, by), settings)[0]![1]).toMatch(/raise rllm\.rollout\.train\.max_tokens \(now 64\)/);
  });

  it("does not advise a precision that the backend does not have", () => {
    const mismatch = course({ "rollout/logprob_diff_mean": 0.31 });
    expect(said(mismatch, config({ rllm: { backend: "tinker" } }))[0]![1]).not.toMatch(/dtype/);
  });

  const stepMetrics = fc.record({
    "reward/mean": fc.constantFrom(0, 0.3, 0.31, 0.9, 1, Number.NaN),
    "actor/entropy": fc.constantFrom(1, 0.5, 0.02, 0.01),
    "response_length/clip_ratio": fc.constantFrom(0, 0.6, 1),
    "response_length/cut_off_by/call": fc.constantFrom(0, 0.6),
    "batch/a/fractions/effective": fc.constantFrom(0, 0.5),
    "batch/termination_reason/error": fc.constantFrom(0, 0.5),
    "update/dropped_not_finite": fc.constantFrom(0, 0, 0, 1),
    "update/optimizer_steps": fc.constantFrom(0, 1),
  });

  it("gives the same advice in a resumed run as in an uninterrupted one", () => {
    fc.assert(
      fc.property(fc.array(stepMetrics, { minLength: 1, maxLength: 60 }), fc.nat(60), (steps, at) => {
        const history = course(...steps);
        const resumed = watchHealth(config());
        for (const { metrics } of history.slice(0, at)) resumed(metrics);
        const after = said(history).filter(([step]) => step > at);
        expect(said(history.slice(at), config(), resumed)).toEqual(after);
      }),
      { numRuns: 200, seed: 1 },
    );
  });

  it("costs the same at step 20,000 as at the first: a step is read only once", () => {
    const health = watchHealth(config());
    let current = 0;
    for (let step = 1; step <= 20_000; step++) {
      current = step;
      const metrics = { "reward/mean": 0.3, "actor/entropy": 1, "response_length/clip_ratio": 0, "reward/a/max": 1 };
      const guarded = new Proxy(metrics, {
        get(target, name: keyof typeof metrics) {
          if (current !== step) throw new Error(`step ${step} was read at step ${current}`);
          return target[name];
        },
      });
      health(guarded);
    }
  });
});
