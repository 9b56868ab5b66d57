/** An agent on another server: receives a task and the address of the model over HTTP. */
import { RunError } from "../errors.ts";
import { answerText } from "../http/answer-text.ts";
import { toOutcome } from "./command-agent.ts";
import type { Outcome, Workflow } from "./types.ts";

/** What an agent is sent, as JSON. */
export interface ExternalJob<Row = unknown> {
  task_id: string;
  task: Row;
  rollout: number;
  attempt: number;
  /** For OpenAI's clients, and for Anthropic's. */
  base_url: string;
  anthropic_base_url: string;
  api_key: string;
  /** Where to post the result, with the API key as bearer token, after an answer of 202. */
  result_url: string;
}

export interface ExternalAgentOptions<Row> {
  /** Jobs are posted to it. */
  url: string;
  headers?: Readonly<Record<string, string>>;
  /** Grades the result. Default: the result is a number or an object with `reward`. */
  reward?: (row: Row, result: unknown) => number | Outcome | Promise<number | Outcome>;
}

/**
 * The agent answers with its result, or with 202 and posts the result to `result_url` later. It must reach the gateway:
 * see `rllm.sdk.proxy` and `rllm.gateway.tunnel`.
 *
 * @example
 * externalAgent<Row>({ url: "https://agents.example/solve", reward: (row, result) => grade(row, result) })
 */
export function externalAgent<Row>({ url, headers, reward }: ExternalAgentOptions<Row>): Workflow<Row> {
  return async (task, { gateway, rollout, attempt, signal, stage }) => {
    stage("agent");
    const job: ExternalJob<Row> = {
      task_id: task.id,
      task: task.row,
      rollout,
      attempt,
      base_url: gateway.baseURL,
      anthropic_base_url: gateway.anthropicBaseURL,
      api_key: gateway.apiKey,
      result_url: `${gateway.anthropicBaseURL}/result`,
    };
    const response = await fetch(url, {
      method: "POST",
      body: JSON.stringify(job),
      signal,
      headers: { "content-type": "application/json", ...headers },
    });
    if (!response.ok) {
      const Failed = response.status >= 500 || response.status === 429 ? RunError : Error;
      throw new Failed(
        `the agent at ${url} answered ${response.status}: ${(await answerText(response.body, url)).slice(0, 500)}`,
      );
    }
    const later = response.status === 202;
    if (later) await response.body?.cancel();
    const result: unknown = later ? await gateway.result() : JSON.parse(await answerText(response.body, url));
    stage("reward");
    return reward === undefined ? toOutcome(result, "the agent's result") : reward(task.row, result);
  };
}
