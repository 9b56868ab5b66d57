/** What users implement: how a task becomes model calls, and the reward of the outcome. */

import { UserError } from "../base/errors.ts";
import type { CallOptions } from "../chat/conversation.ts";
import type { AssistantMessage, ChatMessage, Content, ParsedReply, ToolDefinition } from "../chat/messages.ts";
import type { Task } from "../data/dataset.ts";
import type { TerminationReason, Trial } from "../trajectories/types.ts";

/** Text or parts become a user's message; messages stay what they are. */
export type Shown = Content | readonly ChatMessage[];

/** Of one model call; what is absent is as the run's settings say. */
export interface CallParams extends CallOptions {
  /** Maximum number of tokens of this reply; `data.max_response_length` always applies, too. */
  maxTokens?: number;
  /**
   * What `data.max_response_length` limits: each reply separately (`"reply"`, the default), or everything that follows the
   * role's first prompt, tool results and observations included (`"conversation"`).
   */
  budget?: "reply" | "conversation";
  temperature?: number;
  topP?: number;
  topK?: number;
  minP?: number;
}

/** A reply as a whole (`text`), and parsed into thinking, tool calls and the rest (`content`). */
export interface Reply extends ParsedReply {
  /** The whole reply without special tokens. */
  text: string;
  /** The reply as the message to append to the history. */
  message: AssistantMessage;
  stopReason: "stop" | "length" | "aborted";
  tokens: Int32Array;
  logprobs: Float32Array;
  /** The exact tokens of prompt and reply, including special tokens. */
  transcript(): string;
}

/** The model as a workflow sees it. Every call is recorded as a step of the named agent's trajectory. */
export interface ModelClient {
  /**
   * Pass the whole history each time. Where it contains an earlier reply, the prompt continues that call's exact tokens.
   *
   * @example
   * const reply = await model.chat(messages, { tools });
   * const results = await Promise.all(reply.toolCalls.map((call) => use(call.name, call.arguments)));
   * messages.push(reply.message, ...results.map((content, index) => ({
   *   role: "tool" as const, content, toolCallId: reply.toolCalls[index]!.id,
   * })));
   */
  chat(messages: readonly ChatMessage[], params?: CallParams): Promise<Reply>;
  /**
   * The same model recorded under another role, e.g. `model.as("judge")`. Rewards are compared only within a role.
   * `model.as("solver", 2)` is a second instance of a role in the same rollout, with a trajectory of its own. It is compared
   * with all trajectories of the role; `rewards["solver#2"]` sets its reward.
   */
  as(role: string, instance?: number): ModelClient;
}

/** A graded outcome. `reward: null` means unknown (never trained on); `correct` drives pass@k. */
export interface Outcome {
  reward: number | null;
  correct?: boolean;
  /** The reason for the reward, shown with the episode. */
  explanation?: string;
  /** What happened in a container, shown with the episode. */
  trial?: Trial;
  metrics?: Record<string, number>;
  /** Rewards of single roles where they differ from `reward`, by `"role"` or `"role#instance"`. */
  rewards?: Record<string, number | null>;
  /** Rewards of single model calls, by role as above, in the order of the calls. */
  stepRewards?: Record<string, readonly (number | null)[]>;
  /**
   * Advantages of single model calls, by role as above, in the order of the calls: one number, or one for each token of
   * the reply. Read with `rllm.algorithm.use_precomputed_advantage`, in place of an estimator.
   */
  advantages?: Record<string, readonly (number | readonly number[])[]>;
  /** Why the episode ended; by default `env_done`, or `max_response_length_exceeded` when the last reply was cut off. */
  termination?: Exclude<TerminationReason, "timeout" | "error">;
}

/** What a reward can read besides the row and the reply. */
export interface RewardContext<Row = unknown> {
  task: Task<Row>;
  /** The input of the last model call. */
  messages: readonly ChatMessage[];
  /** Aborted when the rollout's time limit is reached or the run stops. */
  signal: AbortSignal;
}

/** Grades a reply: a finite number, or an `Outcome`, which also gives the reason. */
export type Reward<Row> = (
  row: Row,
  reply: Reply,
  context: RewardContext<Row>,
) => number | Outcome | Promise<number | Outcome>;

/** A function that the model may call. */
export interface Tool extends ToolDefinition {
  /**
   * The result is the tool's message: text as it is, anything else as JSON. The model sees the message of an error.
   * @param args from the model, checked against `parameters` by `defineTool`
   */
  run(args: Readonly<Record<string, unknown>>, context: { signal: AbortSignal }): unknown;
}

/** What an agent sees. Text, or parts with images, becomes a user message; messages are used unchanged. */
export type Observation = Shown;

/** What an environment gets from its rollout. */
export interface EnvironmentContext {
  /** Aborted when the rollout's time limit is reached or the run stops. */
  signal: AbortSignal;
  /** Random numbers in [0, 1) for this rollout; a repeated run gets the same numbers. */
  random: () => number;
}

/** An environment's answer to an action. */
export interface EnvironmentStep {
  /** What the agent sees next; not shown when `done`. */
  observation: Observation;
  /** The reward of this step; null if unknown. */
  reward: number | null;
  done: boolean;
  /** Whether the whole episode was solved; only when `done`. */
  correct?: boolean;
  explanation?: string;
  metrics?: Record<string, number>;
}

/** The environment of one attempt at a task. A retry gets a new one. */
export interface Environment<Action = Reply> {
  /** Offered to the model at every step. */
  readonly tools?: readonly ToolDefinition[];
  /** Called once, first. */
  reset(context: EnvironmentContext): Observation | Promise<Observation>;
  step(action: Action, context: EnvironmentContext): EnvironmentStep | Promise<EnvironmentStep>;
  /** The reward of the whole episode, after it has ended for whatever reason. Default: the sum of the steps' rewards. */
  score?(context: EnvironmentContext): number | Outcome | Promise<number | Outcome>;
  /** Called once at the end, also after errors. */
  close?(): void | Promise<void>;
}

/** Keeps the conversation of one attempt and reads actions from replies. */
export interface Agent<Action = Reply> {
  /** The whole history for the next model call. */
  readonly messages: readonly ChatMessage[];
  observe(observation: Observation): void;
  /** Adds a reply to the history. */
  act(reply: Reply): Action;
}

/** The addresses of the model for clients. Their calls are recorded as steps of this attempt. */
export interface GatewayAddress {
  /** For OpenAI's clients and compatible ones; ends with `/v1`. */
  readonly baseURL: string;
  /** For Anthropic's clients, which add `/v1` themselves. */
  readonly anthropicBaseURL: string;
  readonly apiKey: string;
}

export interface GatewayCalls {
  answered: number;
  /** Why the last call failed, if no call was answered since. A call that the agent itself gave up did not fail. */
  failure?: Error;
}

export interface GatewayAccess extends GatewayAddress {
  /** The same model recorded under another role; see `ModelClient.as`. */
  as(role: string, instance?: number): GatewayAddress;
  /**
   * Records calls that offer no tools (titles, summaries) under the role "side" and those of subagents (another system
   * prompt, or other tools) under "subagent". Give these roles a reward of null if they should not be trained. If no call
   * offers tools, all are the agent's own.
   */
  separateSideCalls(): void;
  /** Refuses all later calls, e.g. of an agent that continues after its time limit. */
  end(): void;
  /** The model calls so far, for agents whose errors do not say that a call failed. */
  calls(): GatewayCalls;
  /** Where an external agent posts its result. It contains a secret, so the agent must not show it to its model. */
  readonly resultURL: string;
  /** The result that an external agent posts to `resultURL`. Rejects if the attempt ends first. */
  result(): Promise<unknown>;
}

/** What a workflow gets besides its task. */
export interface WorkflowContext {
  model: ModelClient;
  /**
   * The same model at an HTTP address, for agents that have their own client.
   *
   * @example
   * const client = new OpenAI({ baseURL: gateway.baseURL, apiKey: gateway.apiKey });
   */
  gateway: GatewayAccess;
  /** Aborted when the rollout's time limit is reached or the run stops. */
  signal: AbortSignal;
  rollout: number;
  /** The number of earlier attempts of this rollout that failed. */
  attempt: number;
  purpose: "train" | "validate";
  /** Model calls that one role may make (`rllm.agent.max_steps`); one more ends the rollout. */
  maxSteps: number;
  /** Containers that `container()` of `hone-rl/containers` keeps ready; negative: one for each core (`rllm.workflow.warm_queue_size`). */
  warmQueueSize?: number;
  /** Random numbers in [0, 1) for this rollout; a repeated run gets the same numbers. */
  random: () => number;
  /**
   * Names what the rollout does from here on, e.g. "prompt", "search": shown while it waits and in failures. "set-up" and
   * "reward" have time limits of their own; all other stages share one. A failure in "set-up", "environment" or "reward"
   * is recorded as a failure of that part.
   */
  stage(name: string): void;
  /** Writes a line to the run's log (log.txt of the run folder), with the rollout's name before it. */
  log(text: string): void;
  /**
   * Registers a function that runs when the attempt has ended, for whatever reason: the last registered first, each within
   * the time limit of the tear-down. Its errors are reported and counted, and do not change the reward.
   */
  tearDown(clean: () => void | Promise<void>): void;
}

/** An async function that calls the model as often as needed and returns the reward. */
export type Workflow<Row> = (task: Task<Row>, context: WorkflowContext) => Promise<Outcome | number> | Outcome | number;

// Errors that end a model call or a rollout.

/** A limit forbids the model call. The rollout ends with this reason, which is not a failure. */
export class RolloutEnded extends Error {
  override name = "RolloutEnded";
  readonly reason: TerminationReason;

  constructor(reason: TerminationReason, message: string) {
    super(message);
    this.reason = reason;
  }
}

/** The engine did not answer a model call; the cause is the engine's own error. */
export class ModelCallError extends Error {
  override name = "ModelCallError";
}

/** The model was called after the rollout had ended. */
export class SessionEnded extends Error {
  override name = "SessionEnded";

  constructor() {
    super("the model was called after the rollout had ended");
  }
}

/** A workflow or an environment returned an invalid value. The message begins with a verb: "returned ...". */
export class BadOutcome extends UserError {
  override name = "BadOutcome";
}
