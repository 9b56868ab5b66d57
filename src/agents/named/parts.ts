/** The parts of a script that named agents, environments and workflows use. */
import type { Task } from "../../data/task.ts";
import { UserError } from "../../errors.ts";
import { nearest } from "../../nearest.ts";
import type { PromptOptions } from "../prompt.ts";
import type { Agent, Environment, Reward, Tool, Workflow } from "../types.ts";

/** `rllm.agent.agent_args` and the like. */
export type NamedArguments = Readonly<Record<string, unknown>>;

/** Makes the agent of one rollout; `args` are `rllm.agent.agent_args`. */
export type AgentFactory = (args: NamedArguments) => Agent;
/** Makes the environment of one rollout; `args` are `rllm.env.env_args`. */
export type EnvironmentFactory<Row> = (task: Task<Row>, args: NamedArguments) => Environment | Promise<Environment>;

/** What settings can choose by name, besides Hone's own parts. */
export interface NamedParts<Row> {
  /** Your own agents, by the names for `rllm.agent.name`. */
  agents?: Readonly<Record<string, AgentFactory>>;
  /** Your own environments, by the names for `rllm.env.name`. */
  environments?: Readonly<Record<string, EnvironmentFactory<Row>>>;
  /** Your own workflows, by the names for `rllm.workflow.name`. */
  workflows?: Readonly<Record<string, Workflow<Row>>>;
  /** The prompt of named environments. Default: the row's `question`, `prompt`, `problem` or `instruction`. */
  prompt?: PromptOptions<Row>["prompt"];
  /** How they grade. Default: the environment's own, against the row's `answer` or `ground_truth`. */
  reward?: Reward<Row>;
  /** The tools of an agent in the environment `tool`. */
  tools?: readonly Tool[];
}

/** @throws UserError for an argument that is not read */
export function checkArguments(of: string, args: NamedArguments, known: readonly string[]): void {
  const unknown = Object.keys(args).find((name) => !known.includes(name));
  if (unknown === undefined) return;
  const near = nearest(unknown, known, 1)[0];
  throw new UserError(`${of} does not have the argument ${unknown}`, {
    hint: near === undefined ? `its arguments: ${known.join(", ") || "none"}` : `did you mean ${near}?`,
  });
}
