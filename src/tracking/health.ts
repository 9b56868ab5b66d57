/** Health rules: the metrics of steps become sentences that say what goes wrong, and the key that fixes it. */
import { mean, standardDeviation } from "../base/values.ts";
import { backendFacts } from "../config/schema/backends.ts";
import type { Config } from "../config/schema.ts";
import { valueAt } from "../config/tree.ts";
import { isMismatch, sequenceCauses } from "../trajectories/batch.ts";
import { lengthLimits } from "../trajectories/types.ts";
import { type Metrics, rolesOf, stepSummary } from "./events.ts";

// What rules remember of earlier steps.

interface Observation {
  metrics: Metrics;
  /** The mean reward; undefined if the step has none or it is not finite. */
  reward: number | undefined;
  /** Nearly everything is solved, so low entropy or a lack of signal is a success. */
  solved: boolean;
}

/** Called once per step, in order. Returns a sentence while something is wrong. */
type Rule = (step: Observation) => string | undefined;

/** Makes the rule for one run. */
type NewRule = (config: Config) => Rule;

const percent = (share: number) => `${Math.round(share * 100)}%`;

/** Adds a value and returns the last `size` values, oldest first. */
function lastValues<Value>(size: number): (value: Value) => readonly Value[] {
  const values: Value[] = [];
  return (value) => {
    values.push(value);
    if (values.length > size) values.shift();
    return values;
  };
}

/** The mean of a metric over the last `steps` steps; undefined if one of them lacks it or there are fewer steps. */
function meanOfLast(steps: number): (value: number | undefined) => number | undefined {
  const add = lastValues<number | undefined>(steps);
  return (value) => {
    const known = add(value).filter((one) => one !== undefined);
    return known.length === steps ? mean(known) : undefined;
  };
}

const solvedShare = 0.9;

/** A task counts as solved by the graders' verdicts, or if the last three rewards are close to the highest seen (1 or more). */
function observer(): (metrics: Metrics) => Observation {
  const add = lastValues<number>(3);
  let recent: readonly number[] = [];
  let highest = 1;
  return (metrics) => {
    const value = stepSummary(metrics).reward;
    const reward = Number.isFinite(value) ? value : undefined;
    if (reward !== undefined) recent = add(reward);
    for (const { value } of rolesOf(metrics, "reward", "max")) {
      if (Number.isFinite(value)) highest = Math.max(highest, value);
    }
    const byVerdict = (metrics["batch/solve_all"] ?? 0) >= solvedShare;
    const byReward = recent.length > 0 && mean(recent) >= solvedShare * highest;
    return { metrics, reward, solved: byVerdict || byReward };
  };
}

// Health rules about learning: values that overflow, entropy and reward that collapse or do not change.

/** A setting for higher precision, unless it is set already or the backend has none. */
function higherPrecision(config: Parameters<NewRule>[0]): string | undefined {
  const { precision } = backendFacts[config.rllm.backend];
  if (precision === undefined || valueAt(config, precision.key) === precision.highest) return undefined;
  return `${precision.key}=${precision.highest}`;
}

const gradientNotFinite: NewRule = (config) => {
  const precision = higherPrecision(config);
  let isUpdated = false;
  return ({ metrics }) => {
    const dropped = metrics["update/dropped_not_finite"] ?? 0;
    const norm = metrics["actor/grad_norm"] ?? 0;
    if (dropped === 0 && Number.isFinite(norm)) {
      isUpdated ||= (metrics["update/optimizer_steps"] ?? 0) > 0;
      return undefined;
    }
    const advice = isUpdated
      ? `lower training.learning_rate (now ${config.training.learning_rate})`
      : "before any update, so the learning rate is not the cause; check the rewards and the loss's options";
    const or = precision === undefined ? "" : ` or set ${precision}`;
    return `a loss or gradient was not finite, so its update was dropped; ${advice}${or}`;
  };
};

/** bfloat16 alone causes about 0.03 nats. */
const alarmingMismatch = 0.2;

const samplerMismatch: NewRule = (config) => {
  const precision = higherPrecision(config);
  return ({ metrics }) => {
    const difference = metrics["rollout/logprob_diff_mean"] ?? 0;
    // A difference is expected from older weights.
    const { "async/staleness_max": lag = 0, "async/steps_since_sync": ahead = 1 } = metrics;
    if (difference <= alarmingMismatch || lag > 0 || ahead > 1) return undefined;
    const what = `log-probabilities of sampler and trainer differ by ${difference.toFixed(2)} nats per token (0.03 is normal)`;
    return `${what}; ${precision === undefined ? "" : `set ${precision} and `}check with \`hone doctor\``;
  };
};

/** Most of an update is smaller than what the weights' precision can express. */
const updateLost: NewRule = (config) => {
  const precision = higherPrecision(config);
  const meanOfThree = meanOfLast(3);
  return ({ metrics }) => {
    const lost = meanOfThree(metrics["actor/update_lost_to_rounding"]);
    if (lost === undefined || lost < 0.5) return undefined;
    const advice = `raise training.learning_rate (now ${config.training.learning_rate})`;
    const or = precision === undefined ? "" : ` or set ${precision}`;
    return `${percent(lost)} of each update is lost when the weights are rounded; ${advice}${or}`;
  };
};

/** The entropy has fallen to a twentieth of its first value, and the task is not solved. */
const entropyCollapse: NewRule = () => {
  const add = lastValues<number>(3);
  let first: number | undefined;
  let count = 0;
  let recent: readonly number[] = [];
  return ({ metrics, solved }) => {
    const { entropy } = stepSummary(metrics);
    if (entropy !== undefined) {
      first ??= entropy;
      count++;
      recent = add(entropy);
    }
    const now = mean(recent);
    if (solved || first === undefined || count < 4 || now > first / 20) return undefined;
    const change = `from ${first.toPrecision(2)} to ${now.toPrecision(2)} nats`;
    return `the entropy has collapsed ${change}; lower training.learning_rate or raise rllm.algorithm.kl_beta`;
  };
};

/** The reward has lost most of its gain, or, if there was no gain, most of its value. */
const rewardCollapse: NewRule = ({ rllm: { trainer } }) => {
  const fix = trainer.save_freq > 0 ? "go back with training.resume_from_path and lower" : "start again with a lower";
  const add = lastValues<number>(3);
  let count = 0;
  let first = Number.NaN;
  let best = Number.NEGATIVE_INFINITY;
  let now = Number.NaN;
  return ({ reward }) => {
    if (reward !== undefined) {
      count++;
      now = mean(add(reward));
      if (count === 3) first = now;
      if (count >= 3) best = Math.max(best, now);
    }
    if (count < 6) return undefined;
    const much = Math.max(best - first, Math.abs(best) / 2) * 0.7;
    if (best - now < Math.max(much, 0.05)) return undefined;
    const fall = `from ${best.toFixed(3)} at its best to ${now.toFixed(3)}`;
    return `the reward has collapsed, ${fall}; ${fix} training.learning_rate`;
  };
};

const flatSteps = 20;

/** No trend over many steps: the two halves differ by less than their noise. */
const rewardFlat: NewRule = ({ training, rllm: { rollout }, data }) => {
  const add = lastValues<number>(flatSteps);
  let rewards: readonly number[] = [];
  return ({ reward, solved }) => {
    if (reward !== undefined) rewards = add(reward);
    if (solved || rewards.length < flatSteps) return undefined;
    const [early, late] = [rewards.slice(0, flatSteps / 2), rewards.slice(flatSteps / 2)];
    const [first, second] = [mean(early), mean(late)];
    const noise = Math.hypot(standardDeviation(early), standardDeviation(late)) / Math.sqrt(flatSteps / 2);
    if (Math.abs(second - first) > Math.max(2 * noise, 0.01)) return undefined;
    return (
      `the reward has stayed at ${second.toFixed(3)} for ${flatSteps} steps; raise training.learning_rate ` +
      `(now ${training.learning_rate}), rllm.rollout.n (now ${rollout.n}) or data.train_batch_size (now ${data.train_batch_size})`
    );
  };
};

// Health rules about rollouts: failures, cut-off replies, broken conversations, equal rewards.

const failedRollouts: NewRule = (config) => {
  const { workflow, agent } = config.rllm;
  const limits = Object.entries({
    "rllm.workflow.set_up_timeout": workflow.set_up_timeout,
    "rllm.agent.trajectory_timeout": agent.trajectory_timeout,
    "rllm.workflow.score_timeout": workflow.score_timeout,
    "rllm.workflow.workflow_args.timeout": workflow.workflow_args.timeout,
  }).flatMap(([key, seconds]) => (seconds === null ? [] : [`${key}=${seconds}`]));
  return ({ metrics }) => {
    const errors = metrics["batch/termination_reason/error"] ?? 0;
    const timeouts = metrics["batch/termination_reason/timeout"] ?? 0;
    // Also those whose reply was cut off, which end at that limit. Runs of earlier versions did not record the count.
    const failed =
      (metrics["batch/failed_episodes"] ?? 0) / (metrics["batch/num_episodes"] ?? Number.POSITIVE_INFINITY);
    if (Math.max(failed, errors + timeouts) < 0.1) return undefined;
    const share = `${percent(Math.max(failed, errors + timeouts))} of rollouts failed`;
    const why = "`failure` in episodes/ gives the reason";
    if (timeouts > errors) return `${share}, most of them at a time limit; ${why} (${limits.join(", ")})`;
    const kind = mostFrequent(metrics, "batch/failures/");
    const where = kind === "model" ? "after replies that the agent could not use" : `in the ${kind}`;
    return `${share}${kind === undefined ? "" : `, most of them ${where}`}; ${why}`;
  };
};

const unknownRewards: NewRule = ({ data, rllm: { agent } }) => {
  const limits = {
    max_turns_exceeded: `rllm.agent.max_steps (now ${agent.max_steps})`,
    max_prompt_length_exceeded: `data.max_prompt_length (now ${data.max_prompt_length})`,
    max_response_length_exceeded: `data.max_response_length (now ${data.max_response_length})`,
  };
  return ({ metrics }) => {
    const all = metrics["groups/num_trajs_before_filter"] ?? 0;
    const dropped = (why: string) => metrics[`groups/dropped_trajs/${why}`] ?? 0;
    const unknown = (dropped("unknown_reward") + dropped("reward_not_finite")) / all;
    if (!(unknown >= 0.1)) return undefined;
    const shareOf = (limit: string) => metrics[`batch/termination_reason/${limit}`] ?? 0;
    const cause = Object.entries(limits).find(([limit]) => shareOf(limit) >= unknown / 2);
    const why = cause && `: ${percent(shareOf(cause[0]))} of rollouts ended at ${cause[1]}; raise it`;
    return `${percent(unknown)} of trajectories have no reward and were dropped${why ?? ""}; see \`explanation\` in episodes/`;
  };
};

/** An agent that calls another model than the one that is trained looks like a run that works. */
const noModelCalls: NewRule =
  () =>
  ({ metrics }) => {
    const share = (metrics["groups/dropped_trajs/no_steps"] ?? 0) / (metrics["groups/num_trajs_before_filter"] ?? 0);
    if (!(share >= 0.5)) return undefined;
    return (
      `${percent(share)} of trajectories have no call of the trained model, so nothing is learned from them; ` +
      "the agent's base URL must be gatewayBaseURL() or gateway.baseURL"
    );
  };

/** Conversations that were split into several sequences, or dropped for that reason. */
const brokenConversations: NewRule =
  () =>
  ({ metrics }) => {
    const sequences = metrics["batch/num_sequences"] ?? 0;
    const dropped = metrics["batch/dropped_sequences/token_mismatch"] ?? 0;
    if (dropped > 0 && dropped >= 0.1 * (sequences + dropped)) {
      const causes = sequenceCauses.filter(isMismatch);
      const start = mostFrequent(metrics, "batch/sequence_starts/", causes);
      const same = { tools_changed: "tools", options_changed: "thinking options" }[start ?? ""];
      const advice =
        same === undefined
          ? "send the history back unchanged"
          : `send the same ${same} with each call of a conversation`;
      return (
        `${percent(dropped / (sequences + dropped))} of sequences were dropped because a model call did not continue the ` +
        `earlier ones${start === undefined ? "" : ` (most often: ${start})`}; ${advice}, or set rllm.filter_token_mismatch=false`
      );
    }
    const thinking = metrics["batch/sequence_starts/reasoning_dropped"] ?? 0;
    if (thinking === 0 || thinking < 0.1 * sequences) return undefined;
    return (
      `the chat template drops earlier thinking, so ${thinking} turns were trained as separate sequences; ` +
      "rllm.accumulate_reasoning=true keeps each conversation in one"
    );
  };

/** Texts from outside that contain control tokens: a tool may return hostile text, or quote a chat. */
const controlTokensInText: NewRule =
  () =>
  ({ metrics }) => {
    const count = metrics["batch/control_tokens_in_text"] ?? 0;
    if (count === 0) return undefined;
    return (
      `${count} control tokens in the text of messages, tool results or arguments were encoded as ordinary text; look for ` +
      "<|...|> in the results of the tools, or set rllm.chat.control_tokens_in_text=true if your prompts need them"
    );
  };

/** The name, after `prefix`, of the largest metric that is above zero. */
function mostFrequent(metrics: Metrics, prefix: string, among?: readonly string[]): string | undefined {
  const counts = Object.entries(metrics)
    .filter(([name, count]) => name.startsWith(prefix) && count > 0)
    .map(([name, count]) => [name.slice(prefix.length), count] as const)
    .filter(([name]) => among === undefined || among.includes(name));
  return counts.sort(([, left], [, right]) => right - left)[0]?.[0];
}

/** Two steps in a row, because a small batch may be unlucky once. */
const repliesCutOff: NewRule = ({ data, training, rllm: { rollout } }) => {
  const { max_response_length: maxResponse } = data;
  const { max_tokens: sampled } = rollout.train;
  const response =
    sampled === maxResponse
      ? `data.max_response_length (now ${maxResponse})`
      : `rllm.rollout.train.max_tokens (now ${sampled})`;
  const advice = {
    call: `the agent's own max_tokens; raise it in the agent (the configuration allows ${sampled})`,
    max_response_length: `the limit of a reply; raise ${response}`,
    max_length: `the limit of prompt and reply together; raise training.max_length (now ${training.max_length})`,
    context_window: "the model's context window; shorten the prompts or use a model with a longer one",
  };
  const recentShare = meanOfLast(2);
  return ({ metrics, solved }) => {
    const share = recentShare(metrics["response_length/clip_ratio"]);
    if (solved || share === undefined || share < 0.5) return undefined;
    const shareOf = (limit: keyof typeof advice) => metrics[`response_length/cut_off_by/${limit}`] ?? 0;
    const limit = lengthLimits.reduce((main, other) => (shareOf(other) > shareOf(main) ? other : main));
    // Runs of earlier versions did not record the limit.
    const known = shareOf(limit) > 0 ? limit : "max_response_length";
    return `${percent(share)} of replies were cut off, most by ${advice[known]}`;
  };
};

const idleShare = 0.05;

/** Groups with equal rewards. Two steps in a row, because a small batch may be unlucky once. */
const noSignal: NewRule = ({ rllm: { rollout } }) => {
  const add = lastValues<ReadonlyMap<string, number>>(2);
  const { n } = rollout;
  const { temperature } = rollout.train;
  return ({ metrics }) => {
    const roles = rolesOf(metrics, "batch", "fractions/effective");
    const steps = add(new Map(roles.map(({ role, value }) => [role, value])));
    const share = (role: string) => steps.reduce((sum, step) => sum + (step.get(role) ?? 1), 0) / steps.length;
    const idle = steps.length < 2 ? undefined : roles.find(({ role }) => share(role) < idleShare);
    if (idle === undefined) return undefined;
    const easy = metrics[`batch/${idle.role}/fractions/too_easy`] ?? 0;
    const hard = metrics[`batch/${idle.role}/fractions/too_hard`] ?? 0;
    const what = `almost no group of "${idle.role}" has rewards that differ, so almost nothing is learned`;
    if (easy > 0.8) return `${what}: nearly all are solved every time; give harder tasks, or stop here`;
    // If cut-off replies or errors are the cause, another rule reports it.
    const elsewhere = ["response_length/clip_ratio", "batch/termination_reason/error"];
    if (hard > 0.8 && elsewhere.some((name) => (metrics[name] ?? 0) >= 0.5)) return undefined;
    const more = `raise rllm.rollout.n (now ${n})`;
    if (hard > 0.8) return `${what}: nearly all fail every time; give easier tasks or partial rewards, or ${more}`;
    const warmer = temperature < 1 ? `raise sampling.train.temperature (now ${temperature}), ` : "";
    return `${what}: ${warmer}${more}, or make the reward distinguish good from better replies`;
  };
};

// Turns the metrics of steps into sentences: what goes wrong, and the key that fixes it.

/** Each of these explains why little is learned. */
const causes: readonly NewRule[] = [
  gradientNotFinite,
  failedRollouts,
  noModelCalls,
  unknownRewards,
  brokenConversations,
  repliesCutOff,
  noSignal,
  samplerMismatch,
  updateLost,
  entropyCollapse,
  rewardCollapse,
];

/** Worth knowing, but no cause. */
const notes: readonly NewRule[] = [controlTokensInText];

/** Reported only while no cause is found, because their advice would be wrong then. */
const symptoms: readonly NewRule[] = [rewardFlat];

/**
 * The returned function takes the metrics of each step, in order, and returns the sentences that have just become true: a
 * rule that stays true is not repeated until it has cleared. A resumed run passes its earlier steps first. The memory of
 * all rules together has a constant size.
 *
 * @example
 * const health = watchHealth(config);
 * for (const text of health(metrics)) emit({ type: "health", text });
 */
export function watchHealth(config: Config): (metrics: Metrics) => string[] {
  const observe = observer();
  const open = (rules: readonly NewRule[]) => rules.map((rule) => ({ rule: rule(config), wasTrue: false }));
  const watched = { causes: open(causes), notes: open(notes), symptoms: open(symptoms) };
  return (metrics) => {
    const step = observe(metrics);
    const texts: string[] = [];
    const apply = (entry: (typeof watched.causes)[number], isExplained: boolean) => {
      const found = entry.rule(step);
      const text = isExplained ? undefined : found;
      if (text !== undefined && !entry.wasTrue) texts.push(text);
      entry.wasTrue = text !== undefined;
    };
    for (const entry of [...watched.causes, ...watched.notes]) apply(entry, false);
    const isExplained = watched.causes.some(({ wasTrue }) => wasTrue);
    for (const entry of watched.symptoms) apply(entry, isExplained);
    return texts;
  };
}
