/** Refuses settings and parts of an experiment that the chosen workflow does not read. */
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import type { NamedParts } from "./parts.ts";

export type Rllm = Config["rllm"];

/** Settings that name agents, environments, workflows and rewards, with their defaults. */
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

type ActorSetting = keyof typeof settings;

/** Keys of `rllm.workflow.workflow_args` that every workflow reads, or that are listed above. */
const listedArguments = ["agent_cls", "agent_args", "env_cls", "env_args", "timeout", "gamma", "reward_bonus_coeff"];

export const furtherArguments = ({ workflow: { workflow_args: args } }: Rllm): string[] =>
  Object.keys(args).filter((name) => !listedArguments.includes(name));

/** Every key of the table, for a script whose own workflow reads none of them. */
export const allSettings = Object.keys(settings) as ActorSetting[];

interface Unread<Row> {
  /** What was chosen, as the beginning of a sentence: "the script has a workflow of its own". */
  because: string;
  settings: readonly ActorSetting[];
  /** What to do about the settings. */
  hint: string;
  /** Also the arguments that only a named workflow takes. */
  furtherArguments?: boolean;
  parts?: { given: NamedParts<Row>; unread: readonly (keyof NamedParts<Row>)[] };
}

/** @throws UserError naming the settings, arguments and parts that are set and would not be read */
export function refuseUnread<Row>(rllm: Rllm, { because, settings: keys, hint, ...more }: Unread<Row>): void {
  const refuse = (names: readonly string[], what: string, advice: string) => {
    if (names.length === 0) return;
    throw new UserError(`${because}, so ${what}${names.join(", ")} would not be read`, { hint: advice });
  };
  const set = keys.filter((key) => {
    const [read, unset] = settings[key];
    return JSON.stringify(read(rllm)) !== JSON.stringify(unset);
  });
  refuse(set, "", hint);
  // After the settings: a reward may come from one of them.
  const given = more.parts?.unread.filter((name) => more.parts?.given[name] !== undefined) ?? [];
  refuse(given, "the experiment's ", `leave ${given.length === 1 ? "it" : "them"} out of defineExperiment`);
  const further = more.furtherArguments ? furtherArguments(rllm) : [];
  refuse(
    further.map((name) => `rllm.workflow.workflow_args.${name}`),
    "",
    further.includes("max_steps") ? "rllm.agent.max_steps limits the turns of every workflow" : "leave it out",
  );
}
