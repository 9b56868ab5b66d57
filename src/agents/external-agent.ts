/** An agent on another server: receives a task and the address of the model over HTTP. */
import { Agent, interceptors, request } from "undici";
import { RunError } from "../errors.ts";
import { answerText } from "../http/answer-text.ts";
import { toOutcome } from "./command-agent.ts";
import type { Outcome, Workflow } from "./types.ts";

// The rollout's time limit counts: an agent may work longer than the five minutes that undici waits for an answer.
const patient = new Agent({ headersTimeout: 0, bodyTimeout: 0 }).compose(interceptors.redirect({ maxRedirections: 5 }));

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
    const { statusCode: status, body } = await request(url, {
      method: "POST",
      body: JSON.stringify(job),
      signal,
      dispatcher: patient,
      headers: { "content-type": "application/json", ...headers },
    });
    const later = status === 202;
    const text = await answerText(body, url);
    if (status < 200 || status > 299) {
      const Failed = status >= 500 || status === 429 ? RunError : Error;
      throw new Failed(`the agent at ${url} answered ${status}: ${text.slice(0, 500)}`);
    }
    const result: unknown = later ? await gateway.result() : JSON.parse(text);
    stage("reward");
    return reward === undefined ? toOutcome(result, "the agent's result") : reward(task.row, result);
  };
}
