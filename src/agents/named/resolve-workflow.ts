/** The workflow that a run makes its episodes with: the script's own, else what the configuration names. */
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import { nearest } from "../../nearest.ts";
import { remoteReward } from "../../rewards/remote-reward.ts";
import { cumulative, multiTurn } from "../multi-turn.ts";
import type { Agent, Task, Workflow } from "../types.ts";
import { builtInAgents } from "./agents.ts";
import { checkArguments } from "./arguments.ts";
import { builtInEnvironments } from "./environments.ts";
import type { AgentFactory, EnvironmentFactory, NamedArguments, NamedParts } from "./parts.ts";
import { isModulePath, loadExport, makeWith } from "./user-module.ts";

type Rllm = Config["rllm"];

/**
 * Names are those of the script's `agents`, `environments` and `workflows`, those built in, or `./file.ts#Name`.
 *
 * @throws UserError for a name that nothing has, with the nearest ones; and when the configuration names something
 * although the script brings a workflow of its own, which would be ignored
 */
export async function resolveWorkflow<Row>(
  parts: NamedParts<Row> & { workflow?: Workflow<Row> },
  rllm: Rllm,
): Promise<Workflow<Row>> {
  if (parts.workflow) {
    refuseIgnored(rllm);
    return parts.workflow;
  }
  const { remote_url: url } = rllm.reward;
  const graded = url.length > 0 && !parts.reward ? { ...parts, reward: remoteReward<Row>({ url }) } : parts;
  return rllm.workflow.use_workflow ? namedWorkflow(graded, rllm) : agentMode(graded, rllm);
}

async function agentMode<Row>(parts: NamedParts<Row>, { agent, env }: Rllm): Promise<Workflow<Row>> {
  // A reward is all that one question and one answer need.
  const unnamed = env.name === "custom" && parts.environments?.custom === undefined;
  const name = unnamed && parts.reward ? "single_turn_env" : env.name;
  return multiTurn<Row>({
    agent: await agentMaker(parts, agent.name, "rllm.agent.name", agent.agent_args),
    environment: await environmentMaker(parts, name, "rllm.env.name", env.env_args),
  });
}

/** Keys of `workflow_args` that mean the same in every workflow. */
const shared = ["agent_cls", "agent_args", "env_cls", "env_args", "timeout", "gamma", "reward_bonus_coeff"];

async function namedWorkflow<Row>(parts: NamedParts<Row>, rllm: Rllm): Promise<Workflow<Row>> {
  const { name, workflow_args: args } = rllm.workflow;
  const key = "rllm.workflow.name";
  const own = parts.workflows?.[name];
  if (own || isModulePath(name)) {
    checkArguments(`the workflow ${name}`, args, shared);
    return own ?? ((await loadExport(name, key)) as Workflow<Row>);
  }
  const built = builtInWorkflows[name];
  if (built === undefined)
    throw unknownName(name, key, [...Object.keys(parts.workflows ?? {}), ...Object.keys(builtInWorkflows)]);
  checkArguments(`the workflow ${name}`, args, [...shared, ...(built.turns === undefined ? ["max_steps"] : [])]);
  const maxSteps = built.turns ?? (args.max_steps as number | undefined);
  return built.make<Row>({
    agent: await agentMaker(
      parts,
      args.agent_cls ?? rllm.agent.name,
      "rllm.workflow.workflow_args.agent_cls",
      args.agent_args,
    ),
    environment: await environmentMaker(
      parts,
      args.env_cls ?? rllm.env.name,
      "rllm.workflow.workflow_args.env_cls",
      args.env_args,
    ),
    ...(maxSteps === undefined ? {} : { maxSteps }),
  });
}

const builtInWorkflows: Record<string, { make: typeof multiTurn; turns?: number }> = {
  single_turn_workflow: { make: multiTurn, turns: 1 },
  simple_workflow: { make: multiTurn, turns: 1 },
  multi_turn_workflow: { make: multiTurn },
  cumulative_workflow: { make: cumulative },
};

async function agentMaker<Row>(
  parts: NamedParts<Row>,
  name: string,
  key: string,
  args: NamedArguments,
): Promise<() => Agent> {
  const known: Record<string, AgentFactory> = { ...builtInAgents, ...parts.agents };
  const factory = known[name];
  if (factory) {
    factory(args); // A wrong argument is told before anything starts.
    return () => factory(args);
  }
  if (!isModulePath(name)) throw unknownName(name, key, Object.keys(known));
  const maker = await loadExport(name, key);
  return () => makeWith<Agent>(maker, args);
}

async function environmentMaker<Row>(parts: NamedParts<Row>, name: string, key: string, args: NamedArguments) {
  const known: Record<string, EnvironmentFactory<Row>> = { ...builtInEnvironments(parts), ...parts.environments };
  const factory = known[name];
  if (factory) return (task: Task<Row>) => factory(task, args);
  if (!isModulePath(name)) throw unknownName(name, key, Object.keys(known));
  const maker = await loadExport(name, key);
  return (task: Task<Row>) => makeWith<ReturnType<EnvironmentFactory<Row>>>(maker, task, args);
}

function unknownName(name: string, key: string, known: readonly string[]): UserError {
  const near = nearest(name, known);
  const isDefault = name === "custom";
  return new UserError(
    isDefault
      ? "the experiment has neither a workflow nor an environment of its own, and rllm.env.name names none"
      : `${key}=${name}: nothing has that name`,
    {
      hint:
        near.length > 0
          ? `did you mean ${near.join(", ")}?`
          : `give the experiment a \`workflow\`, name one of ${known.join(", ")}, or a module of yours: ./file.ts#Name`,
    },
  );
}

/** A setting that names something, with the value that names nothing. */
const naming: [key: string, of: (rllm: Rllm) => unknown, unset: unknown][] = [
  ["rllm.agent.name", ({ agent }) => agent.name, "math_agent"],
  ["rllm.agent.agent_args", ({ agent }) => agent.agent_args, {}],
  ["rllm.env.name", ({ env }) => env.name, "custom"],
  ["rllm.env.env_args", ({ env }) => env.env_args, {}],
  ["rllm.workflow.use_workflow", ({ workflow }) => workflow.use_workflow, false],
  ["rllm.workflow.name", ({ workflow }) => workflow.name, "single_turn_workflow"],
  ["rllm.workflow.workflow_args.agent_cls", ({ workflow }) => workflow.workflow_args.agent_cls, null],
  ["rllm.workflow.workflow_args.agent_args", ({ workflow }) => workflow.workflow_args.agent_args, {}],
  ["rllm.workflow.workflow_args.env_cls", ({ workflow }) => workflow.workflow_args.env_cls, null],
  ["rllm.workflow.workflow_args.env_args", ({ workflow }) => workflow.workflow_args.env_args, {}],
  ["rllm.reward.remote_url", ({ reward }) => reward.remote_url, []],
];

function refuseIgnored(rllm: Rllm): void {
  const ignored = naming
    .filter(([, of, unset]) => JSON.stringify(of(rllm)) !== JSON.stringify(unset))
    .map(([key]) => key);
  if (ignored.length === 0) return;
  throw new UserError(`the script brings a workflow of its own, so ${ignored.join(", ")} would not be read`, {
    hint: ignored.includes("rllm.reward.remote_url")
      ? "grade with remoteReward({ url }) in the script"
      : "leave the setting out, or leave `workflow` out of the experiment",
  });
}
