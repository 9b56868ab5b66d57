/** How a rollout ends whose agent throws after the model has answered (`rllm.workflow.on_agent_error`). */

/**
 * - a reward: the rollout keeps its tokens and gets this reward. The only choice that does not favor replies that the
 *   agent can use.
 * - `retry`: another attempt, which samples new replies
 * - `drop`: the reward is unknown, and the rollout is not trained on
 * - `fail`: the run stops
 */
export type OnAgentError = "retry" | "drop" | "fail" | { reward: number };

export const defaultOnAgentError: OnAgentError = { reward: 0 };

/** Reads the configuration's spelling. */
export function parseOnAgentError(text: `reward:${number}` | "retry" | "drop" | "fail"): OnAgentError {
  if (text === "retry" || text === "drop" || text === "fail") return text;
  return { reward: Number(text.slice("reward:".length)) };
}
