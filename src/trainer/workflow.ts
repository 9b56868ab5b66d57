/** Finds the workflow of a run: the script's own, or else the one that the configuration names. */

import type { Agent, Workflow } from "../agents/types.ts";
import { cumulative, multiTurn } from "../agents/workflows.ts";
import { UserError } from "../base/errors.ts";
import { nearest } from "../base/text.ts";
import { ownValue } from "../base/values.ts";
import type { Config } from "../config/schema.ts";
import type { Task } from "../data/dataset.ts";
import { remoteReward } from "../rewards/remote.ts";
import {
  type AgentFactory,
  allSettings,
  builtInAgents,
  builtInEnvironments,
  checkArguments,
  type EnvironmentFactory,
  engineArguments,
  furtherArguments,
  gradedByReward,
  isClass,
  isModulePath,
  loadExport,
  makeWith,
  type NamedArguments,
  type NamedParts,
  type Rllm,
  refuseUnread,
} from "./named.ts";

/**
 * Names are those of the script's `agents`, `environments` and `workflows`, those built in, or `./file.ts#Name`.
 *
 * @throws UserError for an unknown name, with the nearest ones; and for settings that the script's own workflow would not read
 */
export async function resolveWorkflow<Row>(
  parts: NamedParts<Row> & { workflow?: Workflow<Row> },
  rllm: Rllm,
): Promise<Workflow<Row>> {
  const remote = await remoteWorkflow(parts, rllm);
  if (remote) return remote;
  if (parts.workflow) {
    refuseUnread(rllm, {
      because: "the script defines its own workflow",
      // rLLM's scripts set it beside a workflow of their own.
      settings: allSettings.filter((key) => key !== "rllm.workflow.use_workflow"),
      hint:
        rllm.reward.remote_url.length > 0
          ? "grade with remoteReward({ url }) in the script"
          : "leave the setting out, or leave `workflow` out of the experiment",
      furtherArguments: true,
      parts: { given: parts, unread: ["agents", "environments", "workflows", "prompt", "reward", "tools"] },
    });
    return parts.workflow;
  }
  const { remote_url: url } = rllm.reward;
  if (parts.reward) {
    refuseUnread(rllm, {
      because: "the script defines its own reward",
      settings: ["rllm.reward.remote_url"],
      hint: "leave one of the two out; combine() and remoteReward() in the script grade by both",
    });
  }
  const graded = url.length > 0 ? { ...parts, reward: remoteReward<Row>(remoteOptions(rllm)) } : parts;
  return rllm.workflow.use_workflow ? namedWorkflow(graded, rllm) : agentMode(graded, rllm);
}

/** An agent of Harbor, on rows of `harborTasks`, if the configuration asks for one. */
async function remoteWorkflow<Row>(
  parts: NamedParts<Row> & { workflow?: Workflow<Row> },
  rllm: Config["rllm"],
): Promise<Workflow<Row> | undefined> {
  const { enabled, backend, harbor: settings, session_timeout: maxTimeoutSeconds } = rllm.remote_runtime;
  if (!enabled || backend !== "harbor") return undefined;
  const because = "rllm.remote_runtime.enabled=true runs an agent of Harbor";
  if (parts.workflow) {
    throw new UserError(`${because}, so the script's own workflow would not run`, {
      hint: "leave one of the two out; harbor() in the script makes such a workflow, too",
    });
  }
  refuseUnread(rllm, {
    because,
    settings: allSettings,
    hint: "leave the setting out",
    furtherArguments: true,
    parts: { given: parts, unread: ["agents", "environments", "workflows", "prompt", "reward", "tools"] },
  });
  const { agent, environment_type: environment, network, agent_kwargs: agentArgs, mounts } = settings;
  const trial = {
    agent_timeout_multiplier: settings.agent_timeout_multiplier,
    agent_setup_timeout_multiplier: settings.agent_setup_timeout_multiplier,
    verifier_timeout_multiplier: settings.verifier_timeout_multiplier,
    environment_build_timeout_multiplier: settings.environment_build_timeout_multiplier,
  };
  const { harbor } = await import("../integrations/harbor/index.ts");
  const where = environment === null ? {} : { environment };
  const { program_folder: folder, program_path: path } = settings;
  const program = folder === null ? {} : { program: { folder, path } };
  const workflow = harbor({ agent, ...where, ...program, mounts, network, agentArgs, maxTimeoutSeconds, trial });
  return workflow as unknown as Workflow<Row>;
}

const remoteOptions = ({ reward: { remote_url: url, batch_size, retries, timeout } }: Rllm) => ({
  url,
  batchSize: batch_size,
  retries,
  timeoutSeconds: timeout,
});

async function agentMode<Row>(parts: NamedParts<Row>, rllm: Rllm): Promise<Workflow<Row>> {
  const { agent, env } = rllm;
  refuseUnread(rllm, {
    because: "rllm.workflow.use_workflow is false",
    settings: allSettings.filter((key) => key.startsWith("rllm.workflow.")),
    hint: "set rllm.workflow.use_workflow=true, or rllm.agent and rllm.env instead",
    furtherArguments: true,
  });
  // For one question and one answer, a reward is enough.
  const unnamed = env.name === "custom" && parts.environments?.custom === undefined;
  const onlyModelsGrade = rllm.reward.model !== null && rllm.reward.own_weight === 0 && !parts.reward;
  const name = unnamed && (parts.reward || onlyModelsGrade) ? "single_turn_env" : env.name;
  const graded = onlyModelsGrade && name === "single_turn_env" ? { ...parts, reward: () => ({ reward: null }) } : parts;
  return multiTurn<Row>({
    agent: await agentMaker(parts, agent.name, "rllm.agent.name", { ...engineArguments(rllm), ...agent.agent_args }),
    environment: await environmentMaker(graded, rllm, name, "rllm.env.name", env.env_args),
  });
}

async function namedWorkflow<Row>(parts: NamedParts<Row>, rllm: Rllm): Promise<Workflow<Row>> {
  const { name, workflow_args: args } = rllm.workflow;
  const users = ownValue(parts.workflows, name);
  if (users || isModulePath(name)) return ownWorkflow(users, name, parts, rllm);
  const built = ownValue(builtInWorkflows, name);
  const key = "rllm.workflow.name";
  if (built === undefined)
    throw unknownName(name, key, [...Object.keys(parts.workflows ?? {}), ...Object.keys(builtInWorkflows)]);
  const takes = ["agent_cls", "agent_args", "env_cls", "env_args"];
  if (built.turns === undefined) takes.push("max_steps");
  const given = Object.fromEntries(furtherArguments(rllm).map((argument) => [argument, args[argument]]));
  checkArguments(`the workflow ${name}`, given, takes);
  const maxSteps = built.turns ?? turnsOf(args.max_steps);
  const agent = actorOf(rllm, "agent");
  const environment = actorOf(rllm, "env");
  return built.make<Row>({
    agent: await agentMaker(parts, agent.name, agent.key, agent.args),
    environment: await environmentMaker(parts, rllm, environment.name, environment.key, environment.args),
    maxSteps,
  });
}

async function ownWorkflow<Row>(
  own: Workflow<Row> | undefined,
  name: string,
  parts: NamedParts<Row>,
  rllm: Rllm,
): Promise<Workflow<Row>> {
  refuseUnread(rllm, {
    because: `the workflow ${name} is a function of your own`,
    settings: allSettings.filter((key) => key !== "rllm.workflow.use_workflow" && key !== "rllm.workflow.name"),
    hint: "leave the setting out",
    furtherArguments: true,
    parts: { given: parts, unread: ["reward"] },
  });
  if (own) return own;
  const loaded = await loadExport(name, "rllm.workflow.name");
  if (isClass(loaded)) {
    throw new UserError(`rllm.workflow.name=${name}: this is a class, but a workflow must be a function`, {
      hint: "export an async function of (task, { model }) that returns the reward",
    });
  }
  return loaded as Workflow<Row>;
}

/** The agent or environment of a built-in workflow: the one in `workflow_args`, or else that of agent mode. */
function actorOf(rllm: Rllm, which: "agent" | "env") {
  const { agent_cls, agent_args, env_cls, env_args } = rllm.workflow.workflow_args;
  const { named, own, shared } =
    which === "agent"
      ? { named: agent_cls, own: { ...engineArguments(rllm), ...agent_args }, shared: rllm.agent.agent_args }
      : { named: env_cls, own: env_args, shared: rllm.env.env_args };
  const key = `rllm.workflow.workflow_args.${which}_cls`;
  if (named === null) return { name: rllm[which].name, args: { ...shared, ...own }, key: `rllm.${which}.name` };
  refuseUnread(rllm, {
    because: `${key} names the ${which === "agent" ? "agent" : "environment"}`,
    settings: which === "agent" ? ["rllm.agent.name", "rllm.agent.agent_args"] : ["rllm.env.name", "rllm.env.env_args"],
    hint: "leave one of the two out",
  });
  return { name: named, args: own, key };
}

function turnsOf(value: unknown): number | undefined {
  if (value === undefined) return undefined;
  if (Number.isInteger(value) && (value as number) >= 1) return value as number;
  throw new UserError(
    `rllm.workflow.workflow_args.max_steps=${JSON.stringify(value)}: the number of turns must be a positive integer`,
  );
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
  const make = await makerOf<AgentFactory>({ ...builtInAgents, ...parts.agents }, name, key);
  // Reports a wrong argument before anything starts.
  if (!isModulePath(name)) make(args);
  return () => make(args);
}

async function environmentMaker<Row>(
  parts: NamedParts<Row>,
  rllm: Rllm,
  name: string,
  key: string,
  args: NamedArguments,
) {
  const known = { ...builtInEnvironments(parts), ...parts.environments };
  const make = await makerOf<EnvironmentFactory<Row>>(known, name, key);
  if (ownValue(parts.environments, name) !== undefined || !gradedByReward.includes(name)) {
    refuseUnread(rllm, {
      because: `the environment ${name} gives rewards of its own`,
      settings: ["rllm.reward.remote_url"],
      hint: "leave the setting out",
      parts: { given: parts, unread: ["reward"] },
    });
  }
  return (task: Task<Row>) => make(task, args);
}

/** The named function, or the class or function that a module exports. */
async function makerOf<Maker extends (...args: never[]) => unknown>(
  known: Readonly<Record<string, Maker>>,
  name: string,
  key: string,
): Promise<Maker> {
  const factory = ownValue(known, name);
  if (factory) return factory;
  if (!isModulePath(name)) throw unknownName(name, key, Object.keys(known));
  const loaded = await loadExport(name, key);
  return ((...args: unknown[]) => makeWith(loaded, ...args)) as unknown as Maker;
}

function unknownName(name: string, key: string, known: readonly string[]): UserError {
  const near = nearest(name, known);
  const isDefault = name === "custom";
  const text = isDefault
    ? "the experiment has neither a workflow nor an environment of its own, and rllm.env.name is not set"
    : `${key}=${name}: this name does not exist`;
  const others = `give the experiment a \`workflow\`, name one of ${known.join(", ")}, or a module of yours: ./file.ts#Name`;
  return new UserError(text, { hint: near.length > 0 ? `did you mean ${near.join(", ")}?` : others });
}
