/** Sessions of rollouts that share one queue: each records an attempt's model calls as steps with their exact tokens. */
import { ModelCallError, RolloutEnded, SessionEnded } from "../../agents/control-flow.ts";
import type { ModelClient } from "../../agents/types.ts";
import type { SampleRequest } from "../../backends/engine.ts";
import { type Conversation, openConversation } from "../../chat/conversations/conversation.ts";
import { toMessage } from "../../chat/messages.ts";
import { abortedByEither } from "../../concurrency/abort-controllers.ts";
import { HoneError, messageOf } from "../../errors.ts";
import { deriveSeed } from "../../random.ts";
import { continues } from "../../trajectories/to-sequences.ts";
import { labelOf, type RecordedCall, toTrajectories } from "../to-episode.ts";
import { createSampleQueue, type Participant } from "./sample-queue.ts";
import {
  type BegunTurn,
  beginTurn,
  checkSample,
  faultOf,
  responseRoom,
  toGenerated,
  toSamplingParams,
  toStep,
} from "./turn.ts";
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
  type SessionOptions,
} from "./types.ts";

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
