/** What a script gives to agents, environments and workflows that the configuration names. */

import type { Task } from "../../data/task.ts";
import type { PromptOptions } from "../prompt.ts";
import type { Agent, Environment, Reward, Tool, Workflow } from "../types.ts";

/** `rllm.agent.agent_args` and the like. */
export type NamedArguments = Readonly<Record<string, unknown>>;

export type AgentFactory = (args: NamedArguments) => Agent;
export type EnvironmentFactory<Row> = (task: Task<Row>, args: NamedArguments) => Environment | Promise<Environment>;

export interface NamedParts<Row> {
  /** Agents of one's own, by the names that `rllm.agent.name` may then have. */
  agents?: Readonly<Record<string, AgentFactory>>;
  /** Environments of one's own, by the names that `rllm.env.name` may then have. */
  environments?: Readonly<Record<string, EnvironmentFactory<Row>>>;
  /** Workflows of one's own, by the names that `rllm.workflow.name` may then have. */
  workflows?: Readonly<Record<string, Workflow<Row>>>;
  /** What named environments ask. Default: the row's `question`, `prompt`, `problem` or `instruction`. */
  prompt?: PromptOptions<Row>["prompt"];
  /** How they grade. Default: the environment's own, against the row's `answer` or `ground_truth`. */
  reward?: Reward<Row>;
  /** What an agent in the environment `tool` may use. */
  tools?: readonly Tool[];
}
