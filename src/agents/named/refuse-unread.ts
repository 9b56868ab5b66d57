/** Settings and parts of an experiment that the chosen way of making episodes would leave unread: a mistake each. */
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import type { NamedParts } from "./parts.ts";

export type Rllm = Config["rllm"];

/** Settings that say who acts, with the value that says nothing. */
const settings = {
  "rllm.agent.name": [({ agent }) => agent.name, "math_agent"],
  "rllm.agent.agent_args": [({ agent }) => agent.agent_args, {}],
  "rllm.agent.engine_args": [(rllm) => engineArguments(rllm), {}],
  "rllm.env.name": [({ env }) => env.name, "custom"],
  "rllm.env.env_args": [({ env }) => env.env_args, {}],
  "rllm.workflow.use_workflow": [({ workflow }) => workflow.use_workflow, false],
  "rllm.workflow.name": [({ workflow }) => workflow.name, "single_turn_workflow"],
  "rllm.workflow.workflow_args.agent_cls": [({ workflow }) => workflow.workflow_args.agent_cls, null],
  "rllm.workflow.workflow_args.agent_args": [({ workflow }) => workflow.workflow_args.agent_args, {}],
  "rllm.workflow.workflow_args.env_cls": [({ workflow }) => workflow.workflow_args.env_cls, null],
  "rllm.workflow.workflow_args.env_args": [({ workflow }) => workflow.workflow_args.env_args, {}],
  "rllm.reward.remote_url": [({ reward }) => reward.remote_url, []],
} as const satisfies Record<string, readonly [(rllm: Rllm) => unknown, unknown]>;

/** Further keys of `rllm.agent.engine_args`, which are arguments of the agent. */
export function engineArguments({ agent }: Rllm): Record<string, unknown> {
  const { n_parallel_agents: _, ...further } = agent.engine_args;
  return further;
}

export type ActorSetting = keyof typeof settings;

/** Keys of `rllm.workflow.workflow_args` that every way of making episodes heeds, or that are listed above. */
const listedArguments = ["agent_cls", "agent_args", "env_cls", "env_args", "timeout", "gamma", "reward_bonus_coeff"];

export const furtherArguments = ({ workflow: { workflow_args: args } }: Rllm): string[] =>
  Object.keys(args).filter((name) => !listedArguments.includes(name));

export interface Unread {
  /** What was chosen, as the beginning of a sentence: "the script brings a workflow of its own". */
  because: string;
  settings: readonly ActorSetting[];
  /** What to do about it. */
  hint: string;
}

/** @throws UserError naming those of the settings that say something */
export function refuseUnreadSettings(rllm: Rllm, { because, settings: unread, hint }: Unread): void {
  const said = unread.filter((key) => {
    const [read, unset] = settings[key];
    return JSON.stringify(read(rllm)) !== JSON.stringify(unset);
  });
  if (said.length > 0) throw new UserError(`${because}, so ${said.join(", ")} would not be read`, { hint });
}

/** Every key of the list, for a script whose own workflow reads none of them. */
export const allSettings = Object.keys(settings) as ActorSetting[];

/** @throws UserError naming arguments that only a named workflow would take */
export function refuseFurtherArguments(rllm: Rllm, because: string): void {
  const further = furtherArguments(rllm).map((name) => `rllm.workflow.workflow_args.${name}`);
  if (further.length > 0)
    throw new UserError(`${because}, so ${further.join(", ")} would not be read`, {
      hint: further.some((key) => key.endsWith(".max_steps"))
        ? "rllm.agent.max_steps limits the turns of every workflow"
        : "leave it out",
    });
}

/** @throws UserError naming those of the parts that the script gives */
export function refuseUnreadParts<Row>(
  parts: NamedParts<Row>,
  unread: readonly (keyof NamedParts<Row>)[],
  because: string,
): void {
  const given = unread.filter((name) => parts[name] !== undefined);
  if (given.length === 0) return;
  throw new UserError(`${because}, so the experiment's ${given.join(", ")} would not be read`, {
    hint: `leave ${given.length === 1 ? "it" : "them"} out of defineExperiment`,
  });
}
