/** The record of one attempt at one task: its model calls as steps with their exact tokens, and what it waits for. */
import { setMaxListeners } from "node:events";
import type { ModelClient } from "../agents/types.ts";
import type { Sample, SampleRequest } from "../backends/engine.ts";
import { type Conversation, openConversation, type Turn } from "../chat/conversation.ts";
import { type ChatMessage, type ParsedReply, toMessage } from "../chat/messages.ts";
import { TextTooLong } from "../chat/token-bounds.ts";
import { giveBackAbortController, takeAbortController } from "../concurrency/abort-controllers.ts";
import { HoneError } from "../errors.ts";
import { continues } from "../trajectories/to-sequences.ts";
import type { LengthLimit, Step, Trajectory } from "../trajectories/types.ts";
import { ModelCallError, RolloutEnded, SessionEnded } from "./failures.ts";
import type { Generated, GenerateParams, GenerateRequest } from "./generate.ts";
import { labelOf } from "./label.ts";
import {
  checkSample,
  mostPromptTokens,
  promptTooLong,
  reachedLimit,
  responseRoom,
  toSamplingParams,
} from "./sample-limits.ts";
import type { Participant } from "./sample-queue.ts";
import type { SamplingClientOptions, SessionOptions } from "./sampling-client.ts";
import { type RecordedCall, toTrajectories } from "./to-trajectories.ts";

/** Why a model call was not answered: a limit, the engine, or the request itself, which is then always refused. */
type CallProblem = RolloutEnded | ModelCallError | HoneError;

export interface RolloutSession {
  readonly model: ModelClient;
  /**
   * One model call, recorded as a step.
   * @throws RolloutEnded when the limits forbid it, ModelCallError when the engine does not answer it, SessionEnded
   * after `close`, UserError when the chat template refuses the messages, the signal's reason when aborted
   */
  generate(request: GenerateRequest): Promise<Generated>;
  /** Records why a model call was not answered, for callers that refuse calls before `generate`. */
  reportProblem(problem: CallProblem): void;
  /** Why model calls were not answered, in the order in which they ended. */
  readonly problems: readonly CallProblem[];
  /** The last of these, if no call was answered after it. */
  readonly lastProblem: CallProblem | undefined;
  /** What the rollout's own code is doing, as it says itself; `"workflow"` at first. */
  readonly stage: string;
  setStage(name: string): void;
  /** `what`: "the model", else the stage. */
  waitingFor(): { what: string; seconds: number };
  /** What was recorded so far, in the order of the calls; rewards are not known here and stay null. */
  trajectories(): Trajectory[];
  /** Whether the last reply was cut off by the length limits, not by a smaller limit of the call's own. */
  truncated(): boolean;
  /** What is wrong with the last reply, as a clause: `"was cut off ..."`, `"is not the JSON that was asked for"`. */
  fault(): string | undefined;
  /** Model calls after this fail. */
  close(): void;
}

/** The role of a model that was given none. */
export const defaultRole = "agent";

/** What a role has had of the model so far. */
interface History {
  conversation: Conversation;
  calls: number;
  /** `[P]` length of its first prompt. */
  firstPrompt?: number;
}

interface Begun extends Turn {
  messages: readonly ChatMessage[];
}

export function openSession(
  options: SamplingClientOptions,
  { taskId, rollout, attempt, signal, maxSteps = Number.POSITIVE_INFINITY, keepSteps = true }: SessionOptions,
  participant: Participant,
  onClose: () => void,
): RolloutSession {
  const recorded: RecordedCall[] = [];
  /** By role and instance; they share none: what the solver said is no turn of the judge's. */
  const histories = new Map<string, History>();
  /** When each unanswered model call was made; the first is the oldest. */
  const calls = new Map<number, number>();
  let turns = 0;
  let stage = "workflow";
  let since = performance.now();
  let closed = false;
  const problems: CallProblem[] = [];
  let lastProblem: CallProblem | undefined;

  function reportProblem(problem: CallProblem): void {
    problems.push(problem);
    lastProblem = problem;
  }

  async function generate(request: GenerateRequest): Promise<Generated> {
    try {
      return await sampleReply(request);
    } catch (error) {
      if (error instanceof RolloutEnded || error instanceof ModelCallError || error instanceof HoneError) {
        reportProblem(error);
      }
      throw error;
    }
  }

  async function sampleReply(request: GenerateRequest): Promise<Generated> {
    if (closed) throw new SessionEnded();
    const history = historyOf(request);
    if (history.calls >= maxSteps) throw tooManyTurns(request, maxSteps);
    history.calls++;
    // Counted before anything is waited for: calls made side by side draw as they were made.
    const turn = turns++;
    const stop = abortedByEither(signal, request.signal);
    try {
      return await answer(request, history, turn, stop.signal);
    } finally {
      stop.release();
    }
  }

  async function answer(request: GenerateRequest, history: History, turn: number, stop: AbortSignal) {
    const begun = await begin(request, history.conversation, stop);
    if (closed) throw new SessionEnded();
    history.firstPrompt ??= begun.prompt.length;
    const spent = request.params.budget === "conversation" ? begun.prompt.length - history.firstPrompt : 0;
    const room = responseRoom(begun.prompt.length, options.limits, spent);
    const params = toSamplingParams(
      room,
      "messages" in request.prompt ? withTurnEnd(request.params) : request.params,
      options.defaults,
      options.seedFor({ taskId, rollout, attempt, turn }),
    );
    const { topLogprobs = 0, onToken } = request;
    const sampleRequest: SampleRequest = { prompt: begun.prompt, params };
    if (topLogprobs > 0) sampleRequest.topLogprobs = topLogprobs;
    calls.set(turn, performance.now());
    try {
      const sample = await participant.sample(sampleRequest, turn, stop, onToken);
      checkSample(sample);
      lastProblem = undefined;
      const generated = toGenerated(begun, sample, params);
      if (keepSteps) {
        const { role = defaultRole, instance, metadata = {} } = request;
        const step = toStep(request, begun, sample, generated);
        const fault = faultOf(step, generated.reply, request.wrongWith);
        recorded.push({ turn, role, instance, metadata, fault, step });
      }
      return generated;
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      const problem = new ModelCallError(`model call ${turn + 1} failed: ${text}`, { cause: error });
      if (!stop.aborted) throw problem;
      // Its client gave up waiting; if the whole attempt was stopped, that is reported instead.
      if (!signal?.aborted) reportProblem(problem);
      throw error;
    } finally {
      // When the whole attempt was stopped, what it had been waiting for is still to be told.
      if (!signal?.aborted) {
        calls.delete(turn);
        since = performance.now();
      }
    }
  }

  /** What ends a turn in the chat template need not be among the model's own end tokens, e.g. of a base model. */
  function withTurnEnd(params: GenerateParams): GenerateParams {
    if (params.ignoreEos) return params;
    const own = params.stopIds;
    const stopIds = own === undefined ? options.chat.stopIds : [...new Set([...options.chat.stopIds, ...own])];
    return { ...params, stopIds };
  }

  function historyOf({ role = defaultRole, instance }: GenerateRequest): History {
    const label = labelOf({ name: role, instance });
    const history = histories.get(label) ?? { conversation: openConversation(options.chat), calls: 0 };
    histories.set(label, history);
    return history;
  }

  function tooManyTurns({ role = defaultRole, instance }: GenerateRequest, most: number): RolloutEnded {
    const label = labelOf({ name: role, instance });
    const text = `${most} model calls of "${label}"; rllm.agent.max_steps allows no more`;
    return new RolloutEnded("max_turns_exceeded", text);
  }

  async function begin(
    { prompt, params }: GenerateRequest,
    conversation: Conversation,
    stop: AbortSignal,
  ): Promise<Begun> {
    const later = { mostTokens: mostPromptTokens(options.limits, params.budget), signal: stop };
    try {
      if ("messages" in prompt) {
        const turn = await conversation.beginLater(prompt.messages, params, later);
        return { prompt: turn.prompt, messages: prompt.messages, starts: turn.starts, record: turn.record };
      }
      const { chat } = options;
      const read = (tokens: Int32Array) => chat.decode(tokens, { skipSpecial: true });
      const record: Turn["record"] = ({ tokens }) => ({ content: read(tokens), toolCalls: [], problems: [] });
      const tokens =
        "tokens" in prompt
          ? prompt.tokens
          : await chat.encodeLater(prompt.text, { addSpecial: prompt.addSpecial, ...later });
      const starts = recorded.some(({ step }) => continues(tokens, step)) ? undefined : "raw_prompt";
      return { prompt: tokens, messages: [], starts, record };
    } catch (error) {
      if (!(error instanceof TextTooLong)) throw error;
      throw promptTooLong(`at least ${error.leastTokens}`, options.limits);
    }
  }

  function toGenerated({ prompt, record }: Begun, sample: Sample, params: Generated["params"]): Generated {
    const { tokens, logprobs, stopReason, policyVersion, topLogprobs } = sample;
    const text = options.chat.decode(tokens, { skipSpecial: true });
    const reply = record(sample);
    const generated: Generated = {
      promptTokens: prompt,
      tokens,
      logprobs,
      stopReason,
      policyVersion,
      text,
      reply,
      params,
    };
    if (topLogprobs !== undefined) generated.topLogprobs = topLogprobs;
    return generated;
  }

  function toStep(
    { params: { tools, maxTokens } }: GenerateRequest,
    { prompt, messages, starts }: Begun,
    { tokens, logprobs, processed, stopReason, policyVersion, tokenVersions }: Sample,
    { text, reply, params }: Generated,
  ): Step {
    const cutOffBy = () => reachedLimit(prompt.length, params.maxTokens, maxTokens, options.limits);
    return {
      ...{ promptTokens: prompt, tokens, logprobs, policyVersion, stopReason, text },
      ...(stopReason === "length" ? { cutOffBy: cutOffBy() } : {}),
      ...(processed ? { processed } : {}),
      ...(tokenVersions === undefined ? {} : { tokenVersions }),
      messages: messages.map((message) => ({ ...message })),
      ...(tools === undefined ? {} : { tools }),
      reply,
      ...(starts === undefined ? {} : { starts }),
      reward: null,
    };
  }

  const clientAs = (role: string, instance?: number): ModelClient => ({
    async chat(messages, params = {}) {
      const request = { role, prompt: { messages }, params, ...(instance === undefined ? {} : { instance }) };
      const { reply, text, stopReason, tokens, logprobs, promptTokens } = await generate(request);
      // Copies: what is trained on must not change with what a workflow does to its reply.
      return {
        ...structuredClone({ ...reply, text, message: toMessage(reply) }),
        ...{ stopReason, tokens: tokens.slice(), logprobs: logprobs.slice() },
        transcript: () => options.chat.decode(promptTokens) + options.chat.decode(tokens),
      };
    },
    as: clientAs,
  });
  /** Calls made side by side are answered in any order. */
  const inOrder = () => recorded.sort((left, right) => left.turn - right.turn);

  return {
    model: clientAs(defaultRole),
    generate,
    reportProblem,
    problems,
    get lastProblem() {
      return lastProblem;
    },
    get stage() {
      return stage;
    },
    setStage(name) {
      stage = name;
      since = performance.now();
    },
    waitingFor() {
      const oldest = calls.values().next().value;
      const seconds = (performance.now() - (oldest ?? since)) / 1000;
      return { what: oldest === undefined ? stage : "the model", seconds };
    },
    trajectories: () => toTrajectories(inOrder(), options.grouping ?? { groupBy: null, nameBy: null }),
    truncated() {
      const cutOffBy = inOrder().at(-1)?.step.cutOffBy;
      return cutOffBy !== undefined && cutOffBy !== "call";
    },
    fault: () => inOrder().at(-1)?.fault,
    close() {
      closed = true;
      participant.leave();
      onClose();
    },
  };
}

const limitNames: Record<LengthLimit, string> = {
  call: "the model call's own limit",
  max_response_length: "data.max_response_length",
  max_length: "training.max_length",
  context_window: "the model's context window",
};

/** What is wrong with a reply, as a clause. */
function faultOf(
  { cutOffBy, tokens }: Step,
  reply: ParsedReply,
  wrongWith: GenerateRequest["wrongWith"],
): string | undefined {
  if (cutOffBy !== undefined) return `was cut off after ${tokens.length} tokens (${limitNames[cutOffBy]})`;
  const [problem] = reply.problems;
  return problem === undefined ? wrongWith?.(reply) : `cannot be read: ${problem.message}`;
}

/** The rollout's signal and the call's own as one. */
function abortedByEither(signal: AbortSignal | undefined, own: AbortSignal | undefined) {
  if (signal === undefined || own === undefined) return { signal: signal ?? own ?? never, release: () => {} };
  const either = takeAbortController();
  const stop = () => either.abort(signal.aborted ? signal.reason : own.reason);
  for (const each of [signal, own]) {
    if (each.aborted) stop();
    else each.addEventListener("abort", stop, { once: true });
  }
  const release = () => {
    for (const each of [signal, own]) each.removeEventListener("abort", stop);
    giveBackAbortController(either);
  };
  return { signal: either.signal, release };
}

const never = new AbortController().signal;
setMaxListeners(0, never);
