/**
 * The agents and environments that a configuration names (`rllm.agent.name`, `rllm.env.name`), or a module path in
 * their place.
 */
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import {
  type GridWorldRow,
  type GuessNumberRow,
  gridWorld,
  guessNumber,
  type QuestionOptions,
  questionEnvironment,
} from "../agents/environments.ts";
import { toolEnvironment } from "../agents/tools.ts";
import type { Agent, Environment, Outcome, Reward, Tool, Workflow } from "../agents/types.ts";
import { chatAgent, type PromptOptions } from "../agents/workflows.ts";
import { RunError, UserError } from "../base/errors.ts";
import { importModule } from "../base/import-module.ts";
import { nearest } from "../base/text.ts";
import type { Config } from "../config/schema.ts";
import type { Task } from "../data/dataset.ts";
import { type CodeTest, codeTests } from "../rewards/code.ts";
import { mathAnswer } from "../rewards/math/answer.ts";
import { openSandbox, type Sandbox } from "../rewards/sandbox/sandbox.ts";
import { countdown } from "../rewards/text.ts";

// The parts of a script that named agents, environments and workflows use.

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

// Agents by rLLM's names. They only keep the conversation; environments do the rest of what rLLM's agents do.

const names = ["math_agent", "code_agent", "tool_agent", "frozenlakeagent"];

export const builtInAgents: Readonly<Record<string, AgentFactory>> = Object.fromEntries(
  names.map((name) => [name, conversationAgent(name)]),
);

function conversationAgent(name: string): AgentFactory {
  return (args) => {
    checkArguments(name, args, ["system_prompt"]);
    const { system_prompt: system = null } = args;
    if (system !== null && typeof system !== "string") {
      throw new UserError(`the system_prompt of ${name} must be text, not ${JSON.stringify(system)}`);
    }
    return chatAgent({ system: system ?? undefined });
  };
}

// Environments by name. Arguments take precedence over the row's fields; a missing field is an error with its origin.

type Fields = Readonly<Record<string, unknown>>;

/** Environments that grade with the experiment's `reward`, if it has one. */
export const gradedByReward: readonly string[] = [
  "single_turn_env",
  "math",
  "code",
  "competition_coding",
  "countdown",
  "tool",
];

/** By rLLM's names, and two number games. */
export function builtInEnvironments<Row>(parts: NamedParts<Row>): Readonly<Record<string, EnvironmentFactory<Row>>> {
  const question = (
    name: string,
    own: (fields: Fields, task: Task<Row>) => Reward<Row>,
    attempts: number,
    feedback?: QuestionOptions<Row>["feedback"],
  ) =>
    withFields<Row>(name, ["attempts"], (task, fields) =>
      questionEnvironment(task, {
        prompt: parts.prompt ?? (() => promptOf(fields, task)),
        reward: parts.reward ?? own(fields, task),
        attempts: typeof fields.attempts === "number" ? fields.attempts : attempts,
        ...(feedback === undefined ? {} : { feedback }),
      }),
    );
  const noReward = (_fields: Fields, task: Task<Row>): never => {
    throw new UserError(`${task.origin}: the environment single_turn_env has no reward to grade with`, {
      hint: "give the experiment a `reward`, name servers in rllm.reward.remote_url, or choose the environment math or code",
    });
  };
  return {
    single_turn_env: question("single_turn_env", noReward, 1),
    math: question("math", (fields, task) => (_row, reply) => mathAnswer(reply.text, truthOf(fields, task)), 1),
    code: question("code", programReward, 1, firstFailure),
    competition_coding: question("competition_coding", programReward, 2, firstFailure),
    countdown: question("countdown", (fields, task) => (_row, reply) => countdown(reply.text, gameOf(fields, task)), 1),
    guess_number: withFields("guess_number", ["secret", "low", "high"], (task, fields) =>
      guessNumber(numbersOf(fields, task, ["secret", "low", "high"]) as unknown as GuessNumberRow),
    ),
    frozenlake: withFields("frozenlake", ["size", "seed", "holes", "moves", "slippery", "compass"], (task, fields) => {
      numbersOf(fields, task, ["size", "seed"]);
      return gridWorld(fields as unknown as GridWorldRow);
    }),
    tool: withFields("tool", [], (task, fields) => {
      if (parts.tools === undefined) {
        throw new UserError("the environment tool cannot be used: the experiment has no tools", {
          hint: "give the experiment `tools`",
        });
      }
      const reward: Reward<Row> = parts.reward ?? ((_row, reply) => mathAnswer(reply.text, truthOf(fields, task)));
      return toolEnvironment(task, {
        tools: parts.tools,
        prompt: parts.prompt ?? (() => promptOf(fields, task)),
        reward,
      });
    }),
  };
}

function withFields<Row>(
  name: string,
  known: readonly string[],
  make: (task: Task<Row>, fields: Fields) => ReturnType<EnvironmentFactory<Row>>,
): EnvironmentFactory<Row> {
  return (task, args) => {
    checkArguments(`the environment ${name}`, args, known);
    return make(task, { ...(task.row as object), ...args });
  };
}

function promptOf(fields: Fields, { origin }: Task): Awaited<ReturnType<PromptOptions<unknown>["prompt"]>> {
  const found = fields.question ?? fields.prompt ?? fields.problem ?? fields.instruction ?? fields.messages;
  if (typeof found === "string" || Array.isArray(found)) return found as string;
  throw new UserError(`${origin}: the row has no question, prompt, problem, instruction or messages`, {
    hint: "give the experiment a `prompt`",
  });
}

function truthOf(fields: Fields, { origin }: Task): string | number | (string | number)[] {
  const truth = fields.answer ?? fields.ground_truth;
  if (typeof truth === "string" || typeof truth === "number" || Array.isArray(truth)) return truth;
  throw new UserError(`${origin}: the row has no answer or ground_truth to grade with`, {
    hint: "give the experiment a `reward`",
  });
}

function numbersOf(fields: Fields, { origin }: Task, names: readonly string[]): Fields {
  const missing = names.filter((name) => typeof fields[name] !== "number");
  if (missing.length === 0) return fields;
  throw new UserError(`${origin}: the row has no field ${missing.join(", ")} with a number`, {
    hint: "add it to the rows, or give it for all of them in rllm.env.env_args",
  });
}

function gameOf(fields: Fields, task: Task): { numbers: number[]; target: number } {
  const numbers = fields.numbers ?? fields.nums;
  if (Array.isArray(numbers)) return { numbers, target: numbersOf(fields, task, ["target"]).target as number };
  throw new UserError(`${task.origin}: the row has no field numbers or nums with a list`, {
    hint: "add it to the rows, or give it for all of them in rllm.env.env_args",
  });
}

/** As on sites for programming: the first test that failed, with its output. The others stay hidden. */
const firstFailure = ({ explanation = "that is not right" }: Outcome) => explanation;

let sandbox: Promise<Sandbox> | undefined;

function programReward<Row>(fields: Fields, { origin }: Task): Reward<Row> {
  const tests = (fields.tests ?? fields.ground_truth) as CodeTest[] | undefined;
  if (!Array.isArray(tests)) {
    throw new UserError(`${origin}: the row has no tests`, {
      hint: 'add a field tests with a list such as [{"stdin": "2 3", "stdout": "5"}]',
    });
  }
  return async (_row, reply, { signal }) => {
    sandbox ??= openSandbox();
    const opened = await sandbox.catch((cause: Error) => {
      throw new RunError(cause.message, { cause });
    });
    return codeTests(reply.text, tests, { sandbox: opened, signal });
  };
}

// Refuses settings and parts of an experiment that the chosen workflow does not read.

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

// `./my-agent.ts#MyAgent`: what a module of the user's exports. On the command line `./my-agent.ts:MyAgent` says the same:
// an override's value cannot contain `#` without quotes.

export const isModulePath = (name: string) => /^(?:\.{0,2}\/|[a-zA-Z]:\\)|\.[cm]?[jt]sx?(?:[#:]|$)/.test(name);

type Callable = (...args: never[]) => unknown;

/**
 * @param key of the configuration that names it, for messages
 * @throws UserError when there is no such file, or no such function or class in it
 */
export async function loadExport(name: string, key: string): Promise<Callable> {
  const [, file = name, exported] = /^(.*?\.[cm]?[jt]sx?)(?:[#:](.*))?$/.exec(name) ?? [];
  const path = resolve(file);
  if (!existsSync(path)) throw new UserError(`${key}=${name}: the file ${file} does not exist`);
  const loaded = await importModule(path);
  const functions = Object.keys(loaded).filter((one) => typeof loaded[one] === "function");
  const chosen = exported ?? (functions.length === 1 ? functions[0] : undefined);
  if (chosen !== undefined && functions.includes(chosen)) return loaded[chosen] as Callable;
  const near = nearest(exported ?? "", functions, 1)[0];
  const wanted =
    exported === undefined ? "the name of the export is missing" : `it exports no function or class ${exported}`;
  throw new UserError(`${key}=${name}: ${wanted}`, {
    hint:
      near === undefined
        ? `write ${file}#NAME; it has ${functions.join(", ") || "none"}`
        : `did you mean ${file}#${near}?`,
  });
}

export const isClass = (maker: Callable) => /^class\b/.test(Function.prototype.toString.call(maker));

/** Constructs the class or calls the function, once for each attempt. */
export function makeWith<Made>(maker: Callable, ...args: unknown[]): Made {
  return (isClass(maker) ? Reflect.construct(maker, args) : Reflect.apply(maker, undefined, args)) as Made;
}
