/** `rllm.agent`, `rllm.env`, `rllm.workflow`: the agent, environment and workflow that run episodes. */
import { z } from "zod";
import { aboveZero, count, freeArguments, off, on, optionalText, positive, section, share, text } from "./about.ts";

export const agent = section({
  name: text
    .default("math_agent")
    .describe("Agent for a script without a workflow: a registered name, or the path of your own module."),
  max_steps: positive
    .default(20)
    .describe("Maximum number of model calls per trajectory; one more call ends the rollout."),
  trajectory_timeout: aboveZero
    .nullable()
    .default(null)
    .describe("Time limit per trajectory in seconds, model and environment together; null sets no separate limit."),
  overlong_filter: off.describe("Exclude trajectories that hit a limit (length, steps or time) from the loss."),
  agent_args: freeArguments.default({}).describe("Arguments passed to the agent."),
  engine_args: z
    .object({
      n_parallel_agents: positive
        .nullable()
        .default(null)
        .describe("Same as rllm.workflow.n_parallel_tasks, and overrides it if set."),
    })
    // Further arguments are passed to the agent, like agent_args.
    .catchall(z.unknown())
    .prefault({}),
});

export const env = section({
  name: text
    .default("custom")
    .describe("Environment for a script without a workflow: a registered name, or the path of your own module."),
  env_args: freeArguments.default({}).describe("Arguments passed to the environment; they override the task's fields."),
});

const workflow_args = z
  .object({
    agent_cls: optionalText.describe("Agent that the workflow uses: a registered name or the path of a module."),
    agent_args: freeArguments.default({}).describe("Arguments passed to the workflow's agent."),
    env_cls: optionalText.describe("Environment that the workflow uses: a registered name or the path of a module."),
    env_args: freeArguments.default({}).describe("Arguments passed to the workflow's environment."),
    timeout: aboveZero
      .default(3600)
      .describe("Time limit in seconds for one attempt at a rollout, all phases except tear-down.")
      .meta({
        note: "rLLM's documentation has 1e6 seconds (over eleven days), so a hanging agent would practically never stop.",
      }),
    gamma: share
      .default(0)
      .describe(
        "Discount factor that adds the rewards of later steps to earlier steps; 0 leaves step rewards unchanged.",
      ),
    reward_bonus_coeff: z
      .number()
      .default(0)
      .describe("Adds this coefficient times the change in reward since the previous step."),
  })
  // Arguments of the named workflow: `resolveWorkflow` rejects unknown ones.
  .catchall(z.unknown())
  .prefault({});

export const workflow = section({
  use_workflow: off.describe(
    "Run the workflow in rllm.workflow.name instead of agent and environment. A script's own workflow always runs.",
  ),
  name: text
    .default("single_turn_workflow")
    .describe("Workflow for a script without one: a registered name, or the path of your own module."),
  workflow_args,
  n_parallel_tasks: positive.default(256).describe("Number of rollouts that run concurrently."),
  retry_limit: count
    .min(0)
    .default(3)
    .describe("Maximum number of retries of a rollout that failed for reasons other than the model's reply.")
    .meta({ note: "rLLM counts attempts: 3 means one attempt and two retries." }),
  set_up_timeout: aboveZero
    .nullable()
    .default(600)
    .describe("Time limit in seconds for the set-up of an attempt; null sets no separate limit."),
  score_timeout: aboveZero
    .nullable()
    .default(600)
    .describe("Time limit in seconds for computing the reward of an attempt; null sets no separate limit."),
  tear_down_timeout: aboveZero
    .default(60)
    .describe(
      "Time limit in seconds for each part of an attempt's tear-down; slower parts are abandoned and reported.",
    ),
  raise_on_error: on.describe("Stop the run when a rollout still fails after its retries."),
  on_agent_error: z
    .union([
      z.templateLiteral(["reward:", z.number()]).meta({ title: "reward:NUMBER" }),
      z.enum(["retry", "drop", "fail"]),
    ])
    .default("reward:0")
    .describe("What happens to a rollout whose agent throws after the model has replied.")
    .meta({
      note: "Specific to Hone. retry and drop bias training: they keep only replies that the agent could handle.",
    }),
  warm_queue_size: count
    .default(-1)
    .describe(
      "Number of containers that container() of hone-rl/containers keeps ready, 64 at most: 0 for none, negative for one for each core.",
    ),
});
