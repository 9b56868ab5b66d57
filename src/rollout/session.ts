/**
 * Model calls of a rollout: each is encoded within the limits, sampled in a batch with others, checked, answered and
 * recorded.
 */
import { ModelCallError, type ModelClient, RolloutEnded, SessionEnded } from "../agents/types.ts";
import type { Engine, Sample, SampleRequest, SamplingParams } from "../backends/engine.ts";
import { abortedByEither } from "../base/concurrency.ts";
import { HoneError, messageOf } from "../base/errors.ts";
import { deriveSeed } from "../base/values.ts";
import { type Conversation, openConversation, type Turn } from "../chat/conversation.ts";
import { type NoVision, prepareImages, type Vision } from "../chat/images.ts";
import { type ChatMessage, type ParsedReply, toMessage } from "../chat/messages.ts";
import { TextTooLong } from "../chat/tokenizer.ts";
import type { Chat } from "../chat/types.ts";
import { type Fetching, imageLoader } from "../images/load-image.ts";
import { continues } from "../trajectories/batch.ts";
import type { LengthLimit, Step } from "../trajectories/types.ts";
import { labelOf, type RecordedCall, toTrajectories } from "./outcome.ts";
import { createSampleQueue, type Participant } from "./sample-queue.ts";
import {
  type AttemptChange,
  type CallIdentity,
  type CallProblem,
  defaultRole,
  type Generated,
  type GenerateParams,
  type GenerateRequest,
  type RolloutSession,
  type SamplingClientOptions,
  type SamplingDefaults,
  type SamplingLimits,
  type SessionOptions,
} from "./types.ts";

// One model call: encodes its prompt within the limits, and checks, answers and records its sample.

interface BegunTurn extends Turn {
  messages: readonly ChatMessage[];
}

interface BeginTurnOptions {
  chat: Chat;
  limits: SamplingLimits;
  vision: Vision | NoVision;
  conversation: Conversation;
  /** Whether tokens continue those of an earlier call. */
  continuesCall: (tokens: Int32Array) => boolean;
  signal: AbortSignal;
}

/** @throws RolloutEnded when the prompt is longer than the limits */
async function beginTurn(
  { prompt, params }: GenerateRequest,
  { chat, limits, vision, conversation, continuesCall, signal }: BeginTurnOptions,
): Promise<BegunTurn> {
  const bounds = { maxPromptTokens: maxPromptTokens(limits, params.budget), signal };
  try {
    if ("messages" in prompt) {
      const readsOnlyText =
        typeof vision === "string" && !prompt.messages.some(({ content }) => Array.isArray(content));
      const { messages, images } = readsOnlyText
        ? { ...prompt, images: undefined }
        : await prepareImages(prompt.messages, vision, signal);
      return { ...(await conversation.beginLater(messages, params, { ...bounds, images })), messages };
    }
    const tokens =
      "tokens" in prompt
        ? prompt.tokens
        : await chat.encodeLater(prompt.text, { addSpecial: prompt.addSpecial, ...bounds });
    return {
      prompt: tokens,
      messages: [],
      starts: continuesCall(tokens) ? undefined : "raw_prompt",
      record: (sample) => ({
        content: chat.decode(sample.tokens, { skipSpecial: true }),
        toolCalls: [],
        problems: [],
      }),
    };
  } catch (error) {
    if (!(error instanceof TextTooLong)) throw error;
    throw promptTooLong(`at least ${error.leastTokens}`, limits);
  }
}

/**
 * The most tokens of a reply to a prompt of this length; at least 1.
 * @param spent tokens of the response so far, in earlier turns
 * @throws RolloutEnded when no token is left within the limits
 */
export function responseRoom(promptLength: number, limits: SamplingLimits, spent = 0): number {
  const { maxPromptLength, maxResponseLength } = limits;
  const maxLength = longestSequence(limits);
  if (spent >= maxResponseLength) {
    throw new RolloutEnded(
      "max_response_length_exceeded",
      `${spent} tokens since the first prompt; data.max_response_length is ${maxResponseLength} for all turns together`,
    );
  }
  const room = Math.min(maxResponseLength - spent, maxLength - promptLength);
  // Tokens within the response's budget do not count as prompt.
  if (promptLength - spent <= maxPromptLength && room >= 1) return room;
  throw promptTooLong(`${promptLength}`, limits);
}

function toSamplingParams(
  room: number,
  params: GenerateParams,
  defaults: SamplingDefaults,
  seed: number,
): SamplingParams {
  const complete: SamplingParams = {
    maxTokens: Math.min(params.maxTokens ?? room, room),
    temperature: params.temperature ?? defaults.temperature,
    topP: params.topP ?? defaults.topP,
    topK: params.topK ?? defaults.topK,
    minP: params.minP ?? defaults.minP,
    stopIds: params.stopIds ?? [],
    stopStrings: params.stop ?? [],
    seed: params.seed ?? seed,
  };
  if (params.ignoreEos !== undefined) complete.ignoreEos = params.ignoreEos;
  return complete;
}

/** @throws Error when the engine's answer is not a valid sample, which must never be trained on */
function checkSample({ tokens, logprobs }: Sample): void {
  if (logprobs.length !== tokens.length) {
    throw new Error(`the engine answered ${tokens.length} tokens with ${logprobs.length} log-probabilities`);
  }
  const token = tokens.find((id) => id < 0);
  if (token !== undefined) throw new Error(`the engine answered the token id ${token}`);
  const logprob = logprobs.find((value) => Number.isNaN(value) || value > 1e-3);
  if (logprob !== undefined) throw new Error(`the engine answered the log-probability ${logprob}`);
}

/** @param text the reply without special tokens */
function toGenerated(
  { prompt, messages, record }: BegunTurn,
  sample: Sample,
  text: string,
  params: Generated["params"],
): Generated {
  const { tokens, logprobs, stopReason, policyVersion, topLogprobs } = sample;
  const reply = record(sample);
  const generated: Generated = {
    promptTokens: prompt,
    messages,
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
  { params: { tools, maxTokens }, compacted }: GenerateRequest,
  { prompt, media, messages, starts, textMarks }: BegunTurn,
  { tokens, logprobs, processed, stopReason, policyVersion, tokenVersions, routing }: Sample,
  { text, reply, params }: Generated,
  limits: SamplingLimits,
): Step {
  const step: Step = {
    promptTokens: prompt,
    tokens,
    logprobs,
    policyVersion,
    stopReason,
    text,
    messages: messages.map((message) => ({ ...message })),
    reply,
    reward: null,
  };
  if (media) step.media = media;
  if (stopReason === "length") step.cutOffBy = reachedLimit(prompt.length, params.maxTokens, maxTokens, limits);
  if (processed) step.processed = processed;
  if (tokenVersions !== undefined) step.tokenVersions = tokenVersions;
  if (routing !== undefined) step.routing = routing;
  if (tools !== undefined) step.tools = tools;
  if (textMarks !== undefined) step.textMarks = textMarks;
  if (starts !== undefined) step.starts = compacted && starts === "new_conversation" ? "compacted" : starts;
  return step;
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

/**
 * The limit that a reply of `maxTokens` tokens has reached.
 * @param asked the call's own limit, if any
 */
export function reachedLimit(
  promptLength: number,
  maxTokens: number,
  asked: number | undefined,
  limits: SamplingLimits,
): LengthLimit {
  const { maxResponseLength, maxLength = Infinity, contextWindow = Infinity } = limits;
  if (asked === maxTokens && asked < maxResponseLength) return "call";
  if (promptLength + maxTokens < longestSequence(limits)) return "max_response_length";
  return contextWindow < maxLength ? "context_window" : "max_length";
}

/** The longest prompt that is answered, regardless of earlier turns. */
function maxPromptTokens(limits: SamplingLimits, budget: GenerateParams["budget"]): number {
  const grown = budget === "conversation" ? limits.maxResponseLength : 0;
  return Math.min(limits.maxPromptLength + grown, longestSequence(limits) - 1);
}

function promptTooLong(length: string, limits: SamplingLimits): RolloutEnded {
  const [limit, key] = [
    [limits.maxPromptLength, "data.max_prompt_length"] as const,
    [(limits.maxLength ?? Infinity) - 1, "training.max_length less 1"] as const,
    [(limits.contextWindow ?? Infinity) - 1, "the model's context window less 1"] as const,
  ].reduce((least, other) => (other[0] < least[0] ? other : least));
  return new RolloutEnded("max_prompt_length_exceeded", `a prompt of ${length} tokens; the limit is ${limit} (${key})`);
}

const longestSequence = ({ maxLength = Infinity, contextWindow = Infinity }: SamplingLimits) =>
  Math.min(maxLength, contextWindow);

// Sessions of rollouts that share one queue: each records an attempt's model calls as steps with their exact tokens.

/** What a live rollout waits for. */
interface WaitingRollout {
  taskId: string;
  rollout: number;
  /** `"the model"`, or the stage of its own code: `"workflow"`, `"prompt"`, `"reward"`, ... */
  what: string;
  seconds: number;
}

export interface SamplingClient {
  open(options: SessionOptions): RolloutSession;
  /** Announces more sessions, so that the first ones are not sampled without them. Returns the function that ends it. */
  hold(): () => void;
  /** The live rollouts, the longest waiting first. */
  waitingFor(): WaitingRollout[];
}

export function createSamplingClient(options: SamplingClientOptions): SamplingClient {
  const queue = options.queue ?? createSampleQueue(options.sampler, options.flushMs);
  const live = new Set<{ taskId: string; rollout: number; session: RolloutSession }>();

  return {
    open(identity) {
      const participant = queue.join([identity.order, identity.rollout]);
      const session = openSession(options, identity, participant, () => live.delete(entry));
      const entry = { taskId: identity.taskId, rollout: identity.rollout, session };
      live.add(entry);
      return session;
    },
    hold: queue.hold,
    waitingFor() {
      const waiting = [...live].map(({ session, ...rollout }) => ({ ...rollout, ...session.waitingFor() }));
      return waiting.sort((left, right) => right.seconds - left.seconds);
    },
  };
}

/**
 * For `createSamplingClient`: `rolloutSeed(seed, step)` gives each call `deriveSeed(seed, step, task, rollout, turn)`.
 * A retry gets another seed; with the same one it would fail the same way.
 */
export function rolloutSeed(...run: readonly (string | number)[]): (call: CallIdentity) => number {
  return ({ taskId, rollout, turn, attempt }) =>
    deriveSeed(...run, taskId, rollout, turn, ...(attempt === 0 ? [] : ["retry", attempt]));
}

/** The earlier calls of a role. */
interface History {
  conversation: Conversation;
  calls: number;
  /** `[P]` length of its first prompt. */
  firstPrompt?: number;
}

function openSession(
  {
    chat,
    vision = "the model reads only text",
    limits,
    defaults,
    seedFor,
    onEvent,
    grouping = { groupBy: null, nameBy: null },
    routing = false,
  }: SamplingClientOptions,
  { taskId, rollout, attempt, signal, maxSteps = Number.POSITIVE_INFINITY, keepSteps = true }: SessionOptions,
  participant: Participant,
  onClose: () => void,
): RolloutSession {
  const recorded: RecordedCall[] = [];
  /** By role and instance: a role does not see the prompts of another. */
  const histories = new Map<string, History>();
  /** When each unanswered model call was made; the first is the oldest. */
  const calls = new Map<number, number>();
  const problems: CallProblem[] = [];
  let lastProblem: CallProblem | undefined;
  let gaveUp = false;
  let hasOnlySideCalls = true;
  let answeredCalls = 0;
  let turns = 0;
  let stage = "workflow";
  let since = performance.now();
  let closed = false;

  const report = (change: AttemptChange) => onEvent?.({ task: taskId, rollout, attempt, ...change });
  report({ state: "start" });

  function reportProblem(problem: CallProblem): void {
    problems.push(problem);
    lastProblem = problem;
    gaveUp = false;
  }

  async function generate(request: GenerateRequest): Promise<Generated> {
    const stop = abortedByEither(signal, request.signal);
    try {
      if (closed) throw new SessionEnded();
      const history = historyOf(request);
      history.calls++;
      hasOnlySideCalls &&= request.presumedSide === true;
      // Counted before the first await, so calls made side by side get their seeds in order.
      return await answer(request, history, turns++, stop.signal);
    } catch (error) {
      if (error instanceof RolloutEnded || error instanceof ModelCallError || error instanceof HoneError) {
        reportProblem(error);
      }
      throw error;
    } finally {
      stop.release();
    }
  }

  async function answer(
    request: GenerateRequest,
    history: History,
    turn: number,
    stop: AbortSignal,
  ): Promise<Generated> {
    const { conversation } = history;
    const continuesCall = (tokens: Int32Array) =>
      recorded.some(({ step }) => continues({ promptTokens: tokens }, step));
    const begun = await beginTurn(request, { chat, limits, vision, conversation, continuesCall, signal: stop });
    if (closed) throw new SessionEnded();
    history.firstPrompt ??= begun.prompt.length;
    const spent = request.params.budget === "conversation" ? begun.prompt.length - history.firstPrompt : 0;
    const params = toSamplingParams(
      responseRoom(begun.prompt.length, limits, spent),
      "messages" in request.prompt ? withTurnEnd(request.params) : request.params,
      defaults,
      seedFor({ taskId, rollout, attempt, turn }),
    );
    const { topLogprobs = 0, onToken } = request;
    const sampleRequest: SampleRequest = { prompt: begun.prompt, params };
    if (begun.media) sampleRequest.media = begun.media;
    if (topLogprobs > 0) sampleRequest.topLogprobs = topLogprobs;
    if (routing) sampleRequest.routingFrom = routedBefore(request, begun);
    const began = performance.now();
    calls.set(turn, began);
    let started: number | undefined;
    const onStart = () => {
      started = performance.now();
    };
    const queued = () => {
      const milliseconds = Math.round((started ?? performance.now()) - began);
      return milliseconds > 0 ? { queued: milliseconds } : {};
    };
    report({
      state: "call",
      call: turn,
      role: labelOf({ name: request.role ?? defaultRole, instance: request.instance }),
    });
    try {
      const sample = await participant.sample(sampleRequest, turn, stop, { onToken, onStart });
      checkSample(sample);
      lastProblem = undefined;
      answeredCalls++;
      const generated = toGenerated(begun, sample, chat.decode(sample.tokens, { skipSpecial: true }), params);
      report({ ...answered(turn, generated, sample.tokenVersions), ...queued() });
      if (keepSteps) {
        const { role = defaultRole, instance, metadata = {} } = request;
        const step = toStep(request, begun, sample, generated, limits);
        const fault = faultOf(step, generated.reply, request.wrongWith);
        recorded.push({ turn, role, instance, metadata, fault, step });
      }
      return generated;
    } catch (error) {
      const text = messageOf(error);
      report({ state: "unanswered", call: turn, message: text, ...queued() });
      const problem = new ModelCallError(`model call ${turn + 1} failed: ${text}`, { cause: error });
      if (!stop.aborted) throw problem;
      // The caller gave up. When the whole attempt was stopped, that is reported instead.
      if (!signal?.aborted) {
        reportProblem(problem);
        gaveUp = true;
      }
      throw error;
    } finally {
      // When the whole attempt was stopped, `waitingFor` still reports this call.
      if (!signal?.aborted) {
        calls.delete(turn);
        since = performance.now();
      }
    }
  }

  /** How many tokens of a prompt have their experts in a step that it continues, in the same trajectory. */
  function routedBefore({ role = defaultRole, instance }: GenerateRequest, { prompt, media = [] }: BegunTurn): number {
    if (grouping.groupBy !== null) return 0;
    const before = recorded.map(({ step, ...call }) =>
      call.role === role &&
      call.instance === instance &&
      step.routing &&
      continues({ promptTokens: prompt, media }, step)
        ? step.promptTokens.length + step.tokens.length - 1
        : 0,
    );
    return Math.max(0, ...before);
  }

  /** The chat template's end of a turn may be missing from the model's own end tokens, as in base models. */
  function withTurnEnd(params: GenerateParams): GenerateParams {
    if (params.ignoreEos) return params;
    return { ...params, stopIds: [...new Set([...chat.stopIds, ...(params.stopIds ?? [])])] };
  }

  /** @throws RolloutEnded after the role's last call */
  function historyOf({ role = defaultRole, instance }: GenerateRequest): History {
    const label = labelOf({ name: role, instance });
    const history = histories.get(label) ?? { conversation: openConversation(chat), calls: 0 };
    histories.set(label, history);
    if (history.calls < maxSteps) return history;
    const text = `"${label}" has made ${maxSteps} model calls, the limit of rllm.agent.max_steps`;
    throw new RolloutEnded("max_turns_exceeded", text);
  }

  const clientAs = (role: string, instance?: number): ModelClient => ({
    async chat(messages, params = {}) {
      const generated = await generate({ role, instance, prompt: { messages }, params });
      const { reply, text, stopReason, tokens, logprobs, promptTokens } = generated;
      // Copies, so that a workflow that changes its reply does not change what is trained on.
      return {
        ...structuredClone({ ...reply, text, message: toMessage(reply) }),
        stopReason,
        tokens: tokens.slice(),
        logprobs: logprobs.slice(),
        transcript: () => chat.decode(promptTokens) + chat.decode(tokens),
      };
    },
    as: clientAs,
  });

  /** Calls made side by side are answered in any order. */
  const inOrder = () => recorded.sort((left, right) => left.turn - right.turn);
  const withRoles = () => (hasOnlySideCalls ? inOrder().map((call) => ({ ...call, role: defaultRole })) : inOrder());

  return {
    model: clientAs(defaultRole),
    generate,
    reportProblem,
    problems,
    get lastProblem() {
      return lastProblem;
    },
    calls: () => ({ answered: answeredCalls, ...(lastProblem && !gaveUp ? { failure: lastProblem } : {}) }),
    get stage() {
      return stage;
    },
    setStage(name) {
      stage = name;
      since = performance.now();
      report({ state: "stage", stage });
    },
    waitingFor() {
      const oldest = calls.values().next().value;
      const seconds = (performance.now() - (oldest ?? since)) / 1000;
      return { what: oldest === undefined ? stage : "the model", seconds };
    },
    trajectories: () => toTrajectories(withRoles(), grouping),
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

function answered(
  call: number,
  { promptTokens, tokens, reply, policyVersion }: Generated,
  versions: Int32Array = Int32Array.of(policyVersion),
): AttemptChange {
  const tools = reply.toolCalls.map(({ name }) => name);
  const change = {
    state: "answer",
    call,
    prompt: promptTokens.length,
    tokens: tokens.length,
    versions: [versions[0] ?? policyVersion, policyVersion],
  } as const;
  return tools.length > 0 ? { ...change, tools } : change;
}

// Converts an engine's image support into the form that conversations need.

export function visionOf(
  { images, imagesReason, model }: Pick<Engine, "images" | "imagesReason" | "model">,
  fetching?: Fetching,
): Vision | NoVision {
  if (images === undefined) return imagesReason ?? `${model.name} reads only text`;
  const { placeholder, tokensOf, store } = images;
  return { placeholder, tokensOf, loader: imageLoader(store, fetching) };
}
