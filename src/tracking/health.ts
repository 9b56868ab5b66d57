/** Rules that turn the figures of the last steps into sentences: what is going wrong, and the key that mends it. */
import type { Config } from "../config/schema.ts";
import { mean, standardDeviation } from "../statistics.ts";
import type { StepMetrics } from "./events.ts";
import { rolesOf, stepFigures } from "./step-figures.ts";

/** What a rule sees: the steps done, oldest first, never empty. */
interface Course {
  history: readonly StepMetrics[];
  last: StepMetrics;
  config: Config;
}

/** A sentence while something is wrong, else undefined. */
type Rule = (course: Course) => string | undefined;

/**
 * Sentences that have become true with the last step of `history` (oldest first). A rule that goes on being true is
 * silent; it speaks again when it has cleared in between.
 *
 * @example
 * for (const text of health(history, config)) emit({ type: "health", text });
 */
export function health(history: readonly StepMetrics[], config: Config): string[] {
  const before = history.slice(0, -1);
  const speak = (rule: Rule, steps: readonly StepMetrics[]) =>
    steps.length === 0 ? undefined : rule({ history: steps, last: steps.at(-1)!, config });
  return rules.flatMap((rule) => {
    const text = speak(rule, history);
    return text === undefined || speak(rule, before) !== undefined ? [] : [text];
  });
}

const percent = (share: number) => `${Math.round(share * 100)}%`;

/** The mean of a figure over the last `steps` steps; undefined until there are so many, or where one lacks it. */
function recent(history: readonly StepMetrics[], name: string, steps: number): number | undefined {
  const values = history.slice(-steps).map(({ metrics }) => metrics[name]);
  const known = values.filter((value) => value !== undefined);
  return known.length === steps ? mean(known) : undefined;
}

const repliesCutOff: Rule = ({ history, config }) => {
  const share = recent(history, "response_length/clip_ratio", 2);
  if (share === undefined || share < 0.5) return undefined;
  const { max_response_length: limit } = config.data;
  return `${percent(share)} of replies hit max_tokens; raise data.max_response_length (now ${limit})`;
};

/** Groups without differing rewards, by why. Two steps in a row, since a small batch may be unlucky once. */
const noSignal: Rule = ({ history, last }) => {
  const idle = rolesOf(last.metrics, "batch", "fractions/effective").filter(
    ({ role }) => (recent(history, `batch/${role}/fractions/effective`, 2) ?? 1) < 0.05,
  );
  const { role } = idle[0] ?? {};
  if (role === undefined) return undefined;
  const easy = last.metrics[`batch/${role}/fractions/too_easy`] ?? 0;
  const hard = last.metrics[`batch/${role}/fractions/too_hard`] ?? 0;
  const what = `almost no group of "${role}" has rewards that differ, so almost nothing is learned`;
  if (easy > 0.8) return `${what}: nearly all are solved every time; give harder tasks, or stop here`;
  if (hard > 0.8) {
    return `${what}: nearly all fail every time; give easier tasks or partial rewards, or raise rllm.rollout.n`;
  }
  return `${what}: raise sampling.train.temperature or rllm.rollout.n, or let the reward tell more apart`;
};

/** Entropy that has fallen to a twentieth of where it began: the policy says one thing only. */
const entropyCollapse: Rule = ({ history }) => {
  const entropies = history.flatMap(({ metrics }) => stepFigures(metrics).entropy ?? []);
  const first = entropies[0];
  const now = mean(entropies.slice(-3));
  if (first === undefined || entropies.length < 4 || now > first / 20) return undefined;
  const change = `from ${first.toPrecision(2)} to ${now.toPrecision(2)} nats`;
  return `the entropy has collapsed ${change}; lower training.learning_rate or raise rllm.algorithm.kl_beta`;
};

const rewardsOf = (history: readonly StepMetrics[]) =>
  history.flatMap(({ metrics }) => {
    const { reward } = stepFigures(metrics);
    return reward !== undefined && Number.isFinite(reward) ? [reward] : [];
  });

/** The reward has lost most of what it had gained, or, where it had gained nothing, most of what it was. */
const rewardCollapse: Rule = ({ history }) => {
  const rewards = rewardsOf(history);
  if (rewards.length < 6) return undefined;
  const windows = Array.from({ length: rewards.length - 2 }, (_, index) => mean(rewards.slice(index, index + 3)));
  const now = windows.at(-1)!;
  const best = Math.max(...windows);
  const gained = best - windows[0]!;
  const lost = best - now;
  const much = Math.max(gained, Math.abs(best) / 2) * 0.7;
  if (lost < Math.max(much, 0.05)) return undefined;
  const fall = `from ${best.toFixed(3)} at its best to ${now.toFixed(3)}`;
  return `the reward has collapsed, ${fall}; go back with training.resume_from_path and lower training.learning_rate`;
};

/** bfloat16 alone gives about 0.03 nats. */
const alarmingMismatch = 0.2;

const samplerMismatch: Rule = ({ last, config }) => {
  const difference = last.metrics["rollout/logprob_diff_mean"];
  if (difference === undefined || difference <= alarmingMismatch) return undefined;
  // What older weights have sampled the current ones see otherwise; that is no fault.
  const { "async/staleness_max": lag = 0, "async/steps_since_sync": ahead = 1 } = last.metrics;
  if (lag > 0 || ahead > 1) return undefined;
  const what = `sampler and trainer disagree by ${difference.toFixed(2)} nats a token on the same text (0.03 is normal)`;
  return config.local.dtype === "float32"
    ? `${what}; check with \`hone doctor\``
    : `${what}; set local.dtype=float32 and check with \`hone doctor\``;
};

/** Rollouts that taught nothing because they failed, or because nobody could say what they were worth. */
const lostRollouts: Rule = ({ last: { metrics } }) => {
  const failed = (metrics["batch/termination_reason/error"] ?? 0) + (metrics["batch/termination_reason/timeout"] ?? 0);
  if (failed >= 0.1) {
    return `${percent(failed)} of rollouts failed; episodes/ says why (rllm.workflow.timeout, rllm.workflow.retry_limit)`;
  }
  const all = metrics["groups/num_trajs_before_filter"] ?? 0;
  const unknown =
    (metrics["groups/dropped_trajs/unknown_reward"] ?? 0) + (metrics["groups/dropped_trajs/reward_not_finite"] ?? 0);
  if (all === 0 || unknown / all < 0.1) return undefined;
  return `${percent(unknown / all)} of trajectories have no reward and were left out; see explanation in episodes/`;
};

/** Conversations that fell apart into sequences of their own, or were dropped for it. */
const brokenConversations: Rule = ({ last: { metrics } }) => {
  const sequences = metrics["batch/num_sequences"] ?? 0;
  const dropped = metrics["batch/dropped_sequences/token_mismatch"] ?? 0;
  if (dropped > 0 && dropped >= 0.1 * (sequences + dropped)) {
    return (
      `${percent(dropped / (sequences + dropped))} of sequences were dropped because earlier messages, tools or options were ` +
      "changed (batch/sequence_starts says which); send the history back as it was, or set rllm.filter_token_mismatch=false"
    );
  }
  const thinking = metrics["batch/sequence_starts/reasoning_dropped"] ?? 0;
  if (thinking === 0 || thinking < 0.1 * sequences) return undefined;
  return (
    `the chat template drops earlier thinking, so ${thinking} turns were trained as sequences of their own; ` +
    "rllm.accumulate_reasoning=true keeps each conversation in one"
  );
};

const gradientNotFinite: Rule = ({ last: { metrics }, config }) => {
  const dropped = metrics["update/dropped_not_finite"] ?? 0;
  const norm = metrics["actor/grad_norm"];
  if (dropped === 0 && (norm === undefined || Number.isFinite(norm))) return undefined;
  const mend = `lower training.learning_rate (now ${config.training.learning_rate})`;
  const precision = config.local.dtype === "float32" ? "" : " or set local.dtype=float32";
  return `a loss or gradient was not finite, so its update was dropped; ${mend}${precision}`;
};

const flatSteps = 20;

/** No trend over many steps: the two halves differ by less than their noise, and there is room above. */
const rewardFlat: Rule = ({ history, config }) => {
  const rewards = rewardsOf(history).slice(-flatSteps);
  if (rewards.length < flatSteps) return undefined;
  const halves = [rewards.slice(0, flatSteps / 2), rewards.slice(flatSteps / 2)] as const;
  const [first, second] = [mean(halves[0]), mean(halves[1])];
  const noise = Math.hypot(...halves.map((half) => standardDeviation(half))) / Math.sqrt(flatSteps / 2);
  if (second >= 0.95 || Math.abs(second - first) > Math.max(2 * noise, 0.01)) return undefined;
  const { learning_rate: rate } = config.training;
  return (
    `the reward has stayed at ${second.toFixed(3)} for ${flatSteps} steps; raise training.learning_rate (now ${rate}), ` +
    "rllm.rollout.n or data.train_batch_size"
  );
};

const rules: readonly Rule[] = [
  gradientNotFinite,
  lostRollouts,
  brokenConversations,
  repliesCutOff,
  noSignal,
  samplerMismatch,
  entropyCollapse,
  rewardCollapse,
  rewardFlat,
];
