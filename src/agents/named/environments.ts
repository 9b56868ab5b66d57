/** Environments by name. Arguments take precedence over the row's fields; a missing field is an error with its origin. */

import type { Task } from "../../data/task.ts";
import { RunError, UserError } from "../../errors.ts";
import { type CodeTest, codeTests } from "../../rewards/code/code-tests.ts";
import { mathAnswer } from "../../rewards/math/math-answer.ts";
import { openSandbox, type Sandbox } from "../../rewards/sandbox/index.ts";
import { countdown } from "../../rewards/text/countdown.ts";
import { type GridWorldRow, gridWorld } from "../environments/grid-world.ts";
import { type GuessNumberRow, guessNumber } from "../environments/guess-number.ts";
import { type QuestionOptions, questionEnvironment } from "../environments/question.ts";
import type { PromptOptions } from "../prompt.ts";
import type { Outcome, Reward } from "../types.ts";
import { toolEnvironment } from "../use-tools.ts";
import type { EnvironmentFactory, NamedParts } from "./parts.ts";
import { checkArguments } from "./parts.ts";

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
