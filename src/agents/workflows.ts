/** Ready-made workflows: one reply, an agent in an environment, a solver with a judge, a chat agent. */
import { UserError } from "../base/errors.ts";
import { mean } from "../base/values.ts";
import { type ChatMessage, type Content, joinContents } from "../chat/messages.ts";
import type { Task } from "../data/dataset.ts";
import {
  type Agent,
  BadOutcome,
  type CallParams,
  type Environment,
  type EnvironmentContext,
  type EnvironmentStep,
  type Observation,
  type Outcome,
  type Reply,
  type Reward,
  RolloutEnded,
  type Shown,
  type Workflow,
} from "./types.ts";

// What a prompt or an observation shows, as messages; a row as the messages that open a conversation.

/** @returns what users returned, whose messages may still be anything */
function toMessages(shown: unknown): readonly unknown[] {
  return Array.isArray(shown) && !shown.some(isPart) ? shown : [{ role: "user", content: shown }];
}

/** Whether it can be rendered: text, or a list of parts. The parts themselves are checked with their images. */
const isContent = (content: unknown): content is Content =>
  typeof content === "string" || (Array.isArray(content) && content.length > 0 && content.every(isPart));

const isPart = (part: unknown) => typeof part === "object" && part !== null && "type" in part;

/** How a row becomes the first messages. */
export interface PromptOptions<Row> {
  /** The row as one user message (text, or parts with images), or as a whole conversation. */
  prompt: (row: Row) => Shown | Promise<Shown>;
  /** Put before every prompt. */
  system?: string;
}

/** Checked because a misspelt column of an untyped row would otherwise train on the word "undefined". */
export async function promptMessages<Row>(
  prompt: PromptOptions<Row>["prompt"],
  row: Row,
  system?: string,
): Promise<readonly ChatMessage[]> {
  const given: unknown = await prompt(row);
  const messages = toMessages(given);
  if (messages.length === 0) throw new UserError("prompt(row) returned no messages");
  for (const message of messages) {
    const content = (message as Partial<ChatMessage> | null)?.content;
    if (!isContent(content)) throw new UserError(`prompt(row) returned ${String(content)} instead of a message's text`);
  }
  if (messages.every((message) => (message as ChatMessage).content === ""))
    throw new UserError("prompt(row) returned an empty text");
  if (system === undefined) return messages as ChatMessage[];
  if (messages.some((message) => (message as ChatMessage).role === "system")) {
    throw new UserError("prompt(row) returned a system message, but the workflow has a `system` already");
  }
  return [{ role: "system", content: system }, ...(messages as ChatMessage[])];
}

// The simplest workflow: one prompt, one reply, one reward.

export interface SingleTurnOptions<Row> extends PromptOptions<Row> {
  /** Grades the reply: a finite number, or an `Outcome` that also says why. */
  reward: Reward<Row>;
  params?: CallParams;
}

/**
 * A workflow of one prompt and one reply, which `reward` grades.
 *
 * @example
 * singleTurn<{ question: string; answer: number }>({
 *   prompt: (row) => row.question,
 *   reward: (row, reply) => firstInteger(reply.text, row.answer),
 * })
 */
export function singleTurn<Row>({ prompt, reward, system, params }: SingleTurnOptions<Row>): Workflow<Row> {
  return async (task, { model, stage, signal }) => {
    stage("prompt");
    const messages = await promptMessages(prompt, task.row, system);
    const reply = await model.chat(messages, params);
    stage("reward");
    return reward(task.row, reply, { task, messages, signal });
  };
}

// The plain agent: its history is all observations and replies, in order.

export interface ChatAgentOptions {
  /** The system message. */
  system?: string | undefined;
  /** Example turns before the first observation, which show a small model the form of an answer. */
  shown?: readonly ChatMessage[];
}

/** Its actions are the replies themselves. */
export function chatAgent({ system, shown = [] }: ChatAgentOptions = {}): Agent<Reply> {
  const messages: ChatMessage[] = [...shown];
  if (system !== undefined) messages.unshift({ role: "system", content: system });
  return {
    messages,
    observe: (observation) => void messages.push(...checkObservation(observation)),
    act(reply) {
      messages.push(reply.message);
      return reply;
    },
  };
}

/** @throws BadOutcome when there is nothing to see: a model must not be asked about the word "undefined" */
function checkObservation(observation: Observation): readonly ChatMessage[] {
  if (typeof observation !== "string" && !Array.isArray(observation))
    throw new BadOutcome(`gave the observation ${String(observation)}; it must be a text or a list of messages`);
  const messages = toMessages(observation) as readonly ChatMessage[];
  for (const message of messages) {
    if (!isContent(message?.content))
      throw new BadOutcome(`gave an observation with a message without text: ${JSON.stringify(message)}`);
  }
  if (messages.length === 0 || messages.every(({ content }) => content === ""))
    throw new BadOutcome("gave an empty observation");
  return messages;
}

// Agent and environment take turns until the environment is done or a limit is reached.

export interface MultiTurnOptions<Row, Action = Reply> {
  /** Creates one for each attempt. */
  environment: (task: Task<Row>) => Environment<Action> | Promise<Environment<Action>>;
  /** Creates one for each attempt. Default: `chatAgent()`, whose actions are replies. */
  agent?: (task: Task<Row>) => Agent<Action> | Promise<Agent<Action>>;
  /** Maximum number of turns, if it is less than `rllm.agent.max_steps`. */
  maxSteps?: number | undefined;
  /** Parameters of each model call, e.g. `{ maxTokens: 64 }`. */
  params?: CallParams | undefined;
}

type WithAgent<Row, Action> = MultiTurnOptions<Row, Action> & Required<Pick<MultiTurnOptions<Row, Action>, "agent">>;

/**
 * The reward is the environment's `score`, or else the sum of the steps' rewards; each step keeps its own.
 * `metrics.turns` counts model calls.
 *
 * @example
 * multiTurn<GridWorldRow>({ environment: (task) => gridWorld(task.row), maxSteps: 8, params: { maxTokens: 16 } })
 */
export function multiTurn<Row>(options: MultiTurnOptions<Row>): Workflow<Row>;
export function multiTurn<Row, Action>(options: WithAgent<Row, Action>): Workflow<Row>;
export function multiTurn<Row, Action>(options: MultiTurnOptions<Row, Action>): Workflow<Row> {
  return async (task, { model, signal, random, stage, tearDown, maxSteps }) => {
    stage("set-up");
    const environment = await options.environment(task);
    tearDown(() => environment.close?.());
    // Without an agent, Action is Reply: the overloads ensure it.
    const agent = (await options.agent?.(task)) ?? (chatAgent() as unknown as Agent<Action>);
    const context: EnvironmentContext = { signal, random };
    agent.observe(await environment.reset(context));

    const steps: EnvironmentStep[] = [];
    const params: CallParams = { ...options.params };
    if (environment.tools) params.tools = environment.tools;
    const most = Math.min(options.maxSteps ?? Number.POSITIVE_INFINITY, maxSteps);
    let ending: Ending | undefined;
    while (ending === undefined) {
      stage("agent");
      const reply: Reply | Ending =
        steps.length >= most
          ? { termination: "max_turns_exceeded", why: `not done after ${most} turns` }
          : await model.chat(agent.messages, params).catch(endedByLimit);
      if ("termination" in reply) {
        ending = reply;
        break;
      }
      const action = agent.act(reply);
      stage("environment");
      const step = checkStep(await environment.step(action, context));
      steps.push(step);
      if (step.done) ending = { termination: "env_done" };
      else if (reply.stopReason === "length" && params.maxTokens === undefined) {
        ending = { termination: "max_response_length_exceeded", why: "a reply was cut off" };
      } else agent.observe(step.observation);
    }
    stage("reward");
    const scored = await environment.score?.(context);
    return toOutcome(steps, scored, ending);
  };
}

/** The whole conversation after the first prompt shares `data.max_response_length`. */
export function cumulative<Row>(options: MultiTurnOptions<Row>): Workflow<Row>;
export function cumulative<Row, Action>(options: WithAgent<Row, Action>): Workflow<Row>;
export function cumulative<Row, Action>(options: MultiTurnOptions<Row, Action>): Workflow<Row> {
  return multiTurn({ ...options, params: { ...options.params, budget: "conversation" } } as WithAgent<Row, Action>);
}

interface Ending {
  termination: NonNullable<Outcome["termination"]>;
  why?: string;
}

/** The rewards until then still count. */
function endedByLimit(error: unknown): Ending {
  if (!(error instanceof RolloutEnded)) throw error;
  return { termination: error.reason as Ending["termination"], why: error.message };
}

function toOutcome(steps: readonly EnvironmentStep[], scored: number | Outcome | undefined, ending: Ending): Outcome {
  const last = steps.at(-1);
  const rewards = steps.map(({ reward }) => reward);
  const known = rewards.filter((reward) => reward !== null);
  const allKnown = known.length === rewards.length && rewards.length > 0;
  const sum = allKnown ? known.reduce((total, one) => total + one, 0) : null;
  const own: Outcome = typeof scored === "object" ? scored : { reward: scored ?? sum };
  const outcome: Outcome = {
    ...own,
    metrics: { turns: steps.length, ...last?.metrics, ...own.metrics },
    stepRewards: { ...own.stepRewards },
    termination: own.termination ?? ending.termination,
  };
  if (last) outcome.stepRewards = { agent: rewards, ...own.stepRewards };
  const explanation = [own.explanation ?? last?.explanation, ending.why].filter(Boolean).join("; ");
  if (explanation !== "") outcome.explanation = explanation;
  const correct = own.correct ?? last?.correct ?? (last?.done === false ? false : undefined);
  if (correct !== undefined) outcome.correct = correct;
  return outcome;
}

const form = "a step is { observation, reward, done }";

/** @throws BadOutcome naming the invalid part */
function checkStep(step: unknown): EnvironmentStep {
  if (typeof step !== "object" || step === null) {
    const missing = step === undefined ? " (is a return or an await missing?)" : "";
    throw new BadOutcome(`returned ${String(step)}${missing}; ${form}`);
  }
  const { reward, done } = step as Partial<EnvironmentStep>;
  if (reward !== null && (typeof reward !== "number" || !Number.isFinite(reward))) {
    throw new BadOutcome(`returned the reward ${String(reward)}; it must be a finite number, or null if unknown`);
  }
  if (typeof done !== "boolean")
    throw new BadOutcome(`returned done: ${String(done)}; it must be true or false; ${form}`);
  return step as EnvironmentStep;
}

// Two roles that learn together: one solves, the other judges whether the solution is right.

export interface SolverJudgeOptions<Row> extends PromptOptions<Row> {
  /** Grades a solution; its `correct` is what the judge has to find out. */
  reward: Reward<Row>;
  /** Solutions per rollout, each judged by itself. Default 1. */
  attempts?: number;
  /** What the judge is asked. Default: the task with its images, the solution, and to answer yes or no. */
  question?: (row: Row, solution: string) => Content;
  /** Reads the judge's verdict; null when it gave none. Default: the last "yes" or "no" of its reply. */
  verdict?: (reply: Reply) => boolean | null;
  params?: { solver?: CallParams; judge?: CallParams };
}

/**
 * Solvers are compared with solvers, judges with judges. A judge earns 1 for a right verdict, 0 for a wrong one or none;
 * if the solution's reward is unknown, the judge's is unknown too.
 *
 * @example
 * solverJudge<Row>({ prompt: (row) => row.question, reward: (row, reply) => mathAnswer(reply.text, row.answer), attempts: 2 })
 */
export function solverJudge<Row>(options: SolverJudgeOptions<Row>): Workflow<Row> {
  const { prompt, system, reward, attempts = 1, question, verdict = lastYesOrNo, params = {} } = options;
  return async (task, { model, stage, signal }) => {
    const messages = await promptMessages(prompt, task.row, system);
    const asked = joinContents(
      ...messages.flatMap(({ content }, index) => (index === 0 ? [content] : ["\n\n", content])),
    );
    const one = async (instance: number) => {
      stage("solver");
      const solution = await model.as("solver", instance).chat(messages, params.solver);
      stage("judge");
      const text = question?.(task.row, solution.text) ?? defaultQuestion(asked, solution.text);
      const judged = await model.as("judge", instance).chat([{ role: "user", content: text }], params.judge);
      stage("reward");
      const graded = await reward(task.row, solution, { task, messages, signal });
      const outcome: Outcome = typeof graded === "number" ? { reward: graded } : graded;
      const correct = outcome.correct ?? (outcome.reward === null ? null : outcome.reward >= 1);
      const said = verdict(judged);
      const judgeReward = correct === null ? null : Number(said === correct);
      return { instance, outcome, correct, said, judgeReward };
    };
    const tries = await Promise.all(Array.from({ length: attempts }, (_, index) => one(index + 1)));
    const known = tries.flatMap(({ outcome }) => outcome.reward ?? []);
    const judged = tries.flatMap(({ judgeReward }) => judgeReward ?? []);
    const metrics: Record<string, number> = { judge_silent: tries.filter(({ said }) => said === null).length };
    if (judged.length > 0) metrics.judge_right = mean(judged);
    return {
      reward: known.length === 0 ? null : mean(known),
      correct: tries.some(({ correct }) => correct === true),
      explanation: tries.map(explain).join("; "),
      rewards: Object.fromEntries(
        tries.flatMap(({ instance, outcome, judgeReward }) => [
          [`solver#${instance}`, outcome.reward],
          [`judge#${instance}`, judgeReward],
        ]),
      ),
      metrics,
    };
  };
}

const defaultQuestion = (task: Content, solution: string) =>
  joinContents(
    "Task:\n",
    task,
    `\n\nProposed answer:\n${solution}\n\nIs the proposed answer correct? Answer with yes or no.`,
  );

function lastYesOrNo({ text }: Reply): boolean | null {
  const found = [...text.toLowerCase().matchAll(/\b(yes|no)\b/g)].at(-1)?.[1];
  return found === undefined ? null : found === "yes";
}

function explain({ instance, outcome, said }: { instance: number; outcome: Outcome; said: boolean | null }): string {
  const heard = said === null ? "no verdict" : said ? "judged right" : "judged wrong";
  return `solver ${instance}: ${outcome.explanation ?? `reward ${outcome.reward}`}, ${heard}`;
}
