/** The types of a session: its options, and the requests and answers of model calls from every API. */
import type { CallParams, ModelCallError, ModelClient, RolloutEnded } from "../agents/types.ts";
import type { Sample } from "../backends/engine.ts";
import type { HoneError } from "../base/errors.ts";
import type { NoVision, Vision } from "../chat/images.ts";
import type { ChatMessage, ParsedReply } from "../chat/messages.ts";
import type { Chat } from "../chat/types.ts";
import type { Trajectory } from "../trajectories/types.ts";
import type { SampleQueue, SampleSource } from "./sample-queue.ts";

export interface SamplingLimits {
  /** In tokens. A longer prompt ends its rollout. */
  maxPromptLength: number;
  maxResponseLength: number;
  /** The limit of prompt and reply together. */
  maxLength?: number;
  /** The limit of prompt and reply together that the model itself has. Default: none. */
  contextWindow?: number;
}

/** For calls that do not set their own. */
export interface SamplingDefaults {
  temperature: number;
  topP: number;
  topK: number;
  minP: number;
}

/** Which model call a seed is for. `attempt` is 0 unless the rollout is being retried. */
export interface CallIdentity {
  taskId: string;
  rollout: number;
  attempt: number;
  /** Earlier model calls of this attempt. */
  turn: number;
}

/**
 * Keys of the calls' metadata. Calls with the same value of `groupBy` are one trajectory; a call without it is a trajectory
 * of its own. `nameBy` names trajectories, and those of the same name are compared with each other. Null: by role.
 */
export interface TrajectoryGrouping {
  groupBy: string | null;
  nameBy: string | null;
}

/**
 * What happens to an attempt. The stages of its code have the names that the workflow gives them; see
 * `WorkflowContext.stage`.
 */
export type AttemptChange =
  | { state: "start" }
  | { state: "stage"; stage: string }
  /** A model call was made. `call` counts from 0 within the attempt. */
  | { state: "call"; call: number; role: string }
  /** It was answered: tokens of prompt and reply, names of called tools, and the versions of the weights that sampled. */
  | ({
      state: "answer";
      prompt: number;
      tokens: number;
      tools?: string[];
      versions: readonly [number, number];
    } & CallEnd)
  | ({ state: "unanswered"; message: string } & CallEnd);

interface CallEnd {
  call: number;
  /** Milliseconds in the sample queue, until an engine call began; absent: none. */
  queued?: number;
}

export type AttemptEvent = { task: string; rollout: number; attempt: number } & AttemptChange;

/** What all rollouts of a client share. */
export interface SamplingClientOptions {
  sampler: SampleSource;
  chat: Chat;
  /** How the model sees images; default: it reads only text. */
  vision?: Vision | NoVision;
  defaults: SamplingDefaults;
  limits: SamplingLimits;
  seedFor: (call: CallIdentity) => number;
  /** The most milliseconds for which a model call waits for those of other rollouts. Default 20. */
  flushMs?: number;
  /** Shared by clients whose rollouts run at the same time, so that their calls are batched. Default: one of its own. */
  queue?: SampleQueue | undefined;
  /** Default: one trajectory per role. */
  grouping?: TrajectoryGrouping;
  /** Steps record the experts that sampled them; default false. */
  routing?: boolean;
  /** Called for everything that happens to a session. Must be quick and must not throw. */
  onEvent?: (event: AttemptEvent) => void;
}

export interface SessionOptions extends Omit<CallIdentity, "turn"> {
  /** Position of the task among those that run together. */
  order: number;
  /** Aborts the session's model calls. */
  signal?: AbortSignal;
  /** False: calls are answered but not kept, for sessions without an end. Default true. */
  keepSteps?: boolean;
  /** Model calls that each role may make; default: any number. */
  maxSteps?: number | undefined;
}

/** Why a model call was not answered: a limit, the engine, or the request itself, which would fail again. */
export type CallProblem = RolloutEnded | ModelCallError | HoneError;

export interface RolloutSession {
  readonly model: ModelClient;
  /**
   * One model call, recorded as a step.
   * @throws RolloutEnded when the limits forbid it; ModelCallError when the engine does not answer; SessionEnded after
   * `close`; UserError when the chat template refuses the messages; the signal's reason when aborted
   */
  generate(request: GenerateRequest): Promise<Generated>;
  /** Records why a model call was not answered, for callers that refuse calls before `generate`. */
  reportProblem(problem: CallProblem): void;
  /** Why model calls were not answered, in the order in which they ended. */
  readonly problems: readonly CallProblem[];
  /** The last of them, if no call was answered since. */
  readonly lastProblem: CallProblem | undefined;
  /** `failure`: why the last call failed, if no call was answered since and the caller did not give up. */
  calls(): { answered: number; failure?: CallProblem };
  /** What the rollout's own code is doing, as `setStage` said; `"workflow"` at first. */
  readonly stage: string;
  setStage(name: string): void;
  /** `what`: "the model", or the stage. */
  waitingFor(): { what: string; seconds: number };
  /** The recorded calls, in order. Their rewards are null so far. */
  trajectories(): Trajectory[];
  /** Whether a length limit cut off the last reply, other than the call's own smaller limit. */
  truncated(): boolean;
  /** What is wrong with the last reply, as a clause: `"was cut off ..."`, `"is not the requested JSON"`. */
  fault(): string | undefined;
  /** Later model calls fail. */
  close(): void;
}

/** The role of model calls that name no other. */
export const defaultRole = "agent";

export interface GenerateRequest {
  /** Default: the session's own. */
  role?: string;
  /** One of several instances of the role, each with its own conversations and trajectory. */
  instance?: number | undefined;
  /** A conversation, which continues earlier calls' tokens where it repeats them; or tokens or text as they are. */
  prompt: { messages: readonly ChatMessage[] } | { tokens: Int32Array } | { text: string; addSpecial: boolean };
  params: GenerateParams;
  /** Also return the k most likely tokens at each sampled position. */
  topLogprobs?: number;
  /** Aborting ends the call, which is then not recorded. */
  signal?: AbortSignal;
  /** Called for each sampled token, by engines that support it. */
  onToken?: (token: number, logprob: number) => void;
  /** What is wrong with a reply that could be read, as a clause: `"is not the requested JSON"`. */
  wrongWith?: (reply: ParsedReply) => string | undefined;
  /** The prompt has a summary in place of the agent's earlier history. */
  compacted?: true;
  /** If all calls of the rollout are presumed to be side calls, they are the agent's own. */
  presumedSide?: true;
  /** Kept with the step, for grouping: see `rllm.sdk.processing`. */
  metadata?: Readonly<Record<string, unknown>>;
}

export interface GenerateParams extends CallParams {
  stopIds?: readonly number[];
  ignoreEos?: boolean;
  /** Default: derived from the rollout and the call's position in it. */
  seed?: number;
}

export interface Generated
  extends Pick<Sample, "tokens" | "logprobs" | "stopReason" | "policyVersion" | "topLogprobs"> {
  promptTokens: Int32Array;
  /** Those of the prompt, with their images stored; empty for raw tokens or text. */
  messages: readonly ChatMessage[];
  /** The whole reply without special tokens. */
  text: string;
  /** The parsed reply. A reply to raw tokens or text is all content. */
  reply: ParsedReply;
  /** The parameters in force, with defaults. */
  params: { maxTokens: number; temperature: number; topP: number; topK: number; minP: number; seed: number };
}
