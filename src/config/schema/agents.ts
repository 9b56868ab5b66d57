/** `rllm.agent`, `rllm.env`, `rllm.workflow`: who acts in an episode, and where. */
import { z } from "zod";
import { count, freeArguments, text } from "./about.ts";

export const agent = z
  .strictObject({
    name: text
      .default("math_agent")
      .describe("Agent of agent mode: a registered name, or the path of a module of yours."),
    max_steps: count
      .min(1)
      .default(20)
      .describe("Model calls that one trajectory may make; one more ends the rollout."),
    trajectory_timeout: z
      .number()
      .gt(0)
      .nullable()
      .default(null)
      .describe("Seconds one trajectory may take, model and environment together; null is no limit of its own."),
    overlong_filter: z
      .boolean()
      .default(false)
      .describe("Take trajectories that ran into a limit (length, steps, time) out of the loss."),
    agent_args: freeArguments.default({}).describe("Arguments of the agent."),
    engine_args: z
      .strictObject({
        n_parallel_agents: count
          .min(1)
          .nullable()
          .default(null)
          .describe("The same as rllm.workflow.n_parallel_tasks; wins over it where it is set."),
      })
      .prefault({})
      .describe("Arguments of the rollout engine."),
  })
  .prefault({});

export const env = z
  .strictObject({
    name: text
      .default("custom")
      .describe("Environment of agent mode: a registered name, or the path of a module of yours."),
    env_args: freeArguments.default({}).describe("Arguments of the environment; they win over the task's own fields."),
  })
  .prefault({});

const workflow_args = z
  .object({
    agent_cls: text
      .nullable()
      .default(null)
      .describe("Agent that the workflow uses: a registered name or a module's path."),
    agent_args: freeArguments.default({}).describe("Arguments of that agent."),
    env_cls: text
      .nullable()
      .default(null)
      .describe("Environment that the workflow uses: a registered name or a module's path."),
    env_args: freeArguments.default({}).describe("Arguments of that environment."),
    timeout: z
      .number()
      .gt(0)
      .default(3600)
      .describe("Seconds one attempt at a rollout may take, all phases but the tear-down together.")
      .meta({ note: "The document's default is 1e6 seconds, more than eleven days: a hanging agent would never end." }),
    gamma: z
      .number()
      .min(0)
      .max(1)
      .default(0)
      .describe("Discount with which later steps' rewards count for earlier ones; 0 leaves the steps' rewards alone."),
    reward_bonus_coeff: z.number().default(0).describe("Adds this times the rise of the reward from step to step."),
  })
  // Those of the named workflow: `resolveWorkflow` refuses what it does not take.
  .catchall(z.unknown())
  .prefault({});

export const workflow = z
  .strictObject({
    use_workflow: z
      .boolean()
      .default(false)
      .describe("Run the workflow named below instead of agent and environment. A script's own workflow always runs."),
    name: text
      .default("single_turn_workflow")
      .describe("Workflow of workflow mode: a registered name, or the path of a module of yours."),
    workflow_args,
    n_parallel_tasks: count.min(1).default(256).describe("Rollouts that run at the same time."),
    retry_limit: count
      .min(0)
      .default(3)
      .describe("Retries of a rollout that failed for reasons other than the model's reply.")
      .meta({ note: "rLLM counts attempts, so that 3 are one try and two retries." }),
    set_up_timeout: z
      .number()
      .gt(0)
      .nullable()
      .default(600)
      .describe("Seconds the set-up of an attempt may take; null is no limit of its own."),
    score_timeout: z
      .number()
      .gt(0)
      .nullable()
      .default(600)
      .describe("Seconds the reward of an attempt may take; null is no limit of its own."),
    tear_down_timeout: z
      .number()
      .gt(0)
      .default(60)
      .describe("Seconds each part of an attempt's tear-down may take; what takes longer is left behind and told."),
    raise_on_error: z.boolean().default(true).describe("Stop the run when a rollout still fails after its retries."),
    on_agent_error: z
      .union([
        z.templateLiteral(["reward:", z.number()]).meta({ title: "reward:NUMBER" }),
        z.enum(["retry", "drop", "fail"]),
      ])
      .default("reward:0")
      .describe("What becomes of a rollout whose agent throws after the model has answered.")
      .meta({
        note: "A key of Hone's own. retry and drop bias the training: they keep only the replies that the agent could use.",
      }),
    warm_queue_size: count
      .default(-1)
      .describe("Sandboxes prepared ahead: 0 none, negative as many as are created at a time.")
      .meta({ later: "sandboxes are not prepared ahead yet" }),
  })
  .prefault({});
