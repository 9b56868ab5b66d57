/** Health rules about rollouts: failures, cut-off replies, broken conversations, equal rewards. */
import { isMismatch, sequenceCauses } from "../../trajectories/to-sequences.ts";
import { lengthLimits } from "../../trajectories/types.ts";
import type { Metrics } from "../events.ts";
import { rolesOf } from "../step-summary.ts";
import { lastValues, meanOfLast, type NewRule, percent } from "./rule.ts";

export const failedRollouts: NewRule = (config) => {
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

export const unknownRewards: NewRule = ({ data, rllm: { agent } }) => {
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
export const noModelCalls: NewRule =
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
export const brokenConversations: NewRule =
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

/** The name, after `prefix`, of the largest metric that is above zero. */
function mostFrequent(metrics: Metrics, prefix: string, among?: readonly string[]): string | undefined {
  const counts = Object.entries(metrics)
    .filter(([name, count]) => name.startsWith(prefix) && count > 0)
    .map(([name, count]) => [name.slice(prefix.length), count] as const)
    .filter(([name]) => among === undefined || among.includes(name));
  return counts.sort(([, left], [, right]) => right - left)[0]?.[0];
}

/** Two steps in a row, because a small batch may be unlucky once. */
export const repliesCutOff: NewRule = ({ data, training, rllm: { rollout } }) => {
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
export const noSignal: NewRule = ({ rllm: { rollout } }) => {
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
