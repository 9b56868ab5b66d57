/** The record of one attempt at one task: its model calls as steps with their exact tokens, and what it waits for. */
import type { CallParams, ModelClient, Reply } from "../agents/types.ts";
import type { SampleRequest } from "../backends/engine.ts";
import type { ChatMessage, Step, Trajectory } from "../trajectories/types.ts";
import { ModelCallError, RolloutEnded } from "./failures.ts";
import type { Participant } from "./sample-queue.ts";
import type { SamplingClientOptions, SessionOptions } from "./sampling-client.ts";

export interface RolloutSession {
  readonly model: ModelClient;
  /** What the rollout's own code is doing, as it says itself; `"workflow"` at first. */
  readonly stage: string;
  setStage(name: string): void;
  /** `what`: "the model", else the stage. */
  waitingFor(): { what: string; seconds: number };
  /** What was recorded so far, in the order of the calls; rewards are not known here and stay null. */
  trajectories(): Trajectory[];
  /** Whether the last reply was cut off by the length limits, not by a smaller limit of the call's own. */
  truncated(): boolean;
  /** Model calls after this fail. */
  close(): void;
}

interface Recorded {
  turn: number;
  role: string;
  truncated: boolean;
  step: Step;
}

export function openSession(
  options: SamplingClientOptions,
  { taskId, rollout, attempt, signal }: SessionOptions,
  participant: Participant,
  onClose: () => void,
): RolloutSession {
  const recorded: Recorded[] = [];
  /** When each unanswered model call was made; the first is the oldest. */
  const calls = new Map<number, number>();
  let turns = 0;
  let stage = "workflow";
  let since = performance.now();
  let closed = false;

  async function call(role: string, messages: readonly ChatMessage[], params: CallParams): Promise<Reply> {
    if (closed) throw new Error("the model was called after the rollout had ended");
    const prompt = options.chat.render(messages);
    const room = responseRoom(prompt.length, options.limits);
    const turn = turns++;
    const seed = options.seedFor({ taskId, rollout, attempt, turn });
    const request = toRequest(prompt, room, params, options.defaults, seed);
    calls.set(turn, performance.now());
    const sample = await participant
      .sample(request, turn, signal)
      .catch((error: unknown) => {
        if (signal.aborted) throw error;
        const text = error instanceof Error ? error.message : String(error);
        throw new ModelCallError(`model call ${turn + 1} failed: ${text}`, { cause: error });
      })
      .finally(() => {
        calls.delete(turn);
        since = performance.now();
      });
    const { tokens, logprobs, stopReason, policyVersion } = sample;
    const text = options.chat.decode(tokens, { skipSpecial: true });
    recorded.push({
      turn,
      role,
      truncated: stopReason === "length" && request.params.maxTokens === room,
      step: {
        promptTokens: prompt,
        tokens,
        logprobs,
        policyVersion,
        stopReason,
        text,
        messages: messages.map((message) => ({ ...message })),
        reward: null,
      },
    });
    // Copies: what is trained on must not change with what a workflow does to its reply.
    return { text, stopReason, tokens: tokens.slice(), logprobs: logprobs.slice() };
  }

  const clientAs = (role: string): ModelClient => ({
    chat: (messages, params = {}) => call(role, messages, params),
    as: clientAs,
  });
  /** Calls made side by side are answered in any order. */
  const inOrder = () => recorded.sort((left, right) => left.turn - right.turn);

  return {
    model: clientAs(defaultRole),
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
    trajectories: () => byRole(inOrder()),
    truncated: () => inOrder().at(-1)?.truncated ?? false,
    close() {
      closed = true;
      participant.leave();
      onClose();
    },
  };
}

/** The role of a model that was given none. */
export const defaultRole = "agent";

/** One trajectory a role, in the order of the roles' first calls. */
function byRole(recorded: readonly Recorded[]): Trajectory[] {
  const trajectories = new Map<string, Trajectory>();
  for (const { role, step } of recorded) {
    const trajectory = trajectories.get(role) ?? { name: role, steps: [], reward: null };
    trajectories.set(role, trajectory);
    trajectory.steps.push(step);
  }
  return [...trajectories.values()];
}

function toRequest(
  prompt: Int32Array,
  room: number,
  params: CallParams,
  defaults: SamplingClientOptions["defaults"],
  seed: number,
): SampleRequest {
  return {
    prompt,
    params: {
      maxTokens: Math.min(params.maxTokens ?? room, room),
      temperature: params.temperature ?? defaults.temperature,
      topP: params.topP ?? defaults.topP,
      topK: params.topK ?? defaults.topK,
      minP: params.minP ?? defaults.minP,
      stopIds: [],
      stopStrings: params.stop ?? [],
      seed,
    },
  };
}

/**
 * Tokens that a reply to a prompt of this length may have, at least 1.
 * @throws RolloutEnded when the limits leave none
 */
function responseRoom(promptLength: number, limits: SamplingClientOptions["limits"]): number {
  const { maxPromptLength, maxResponseLength, maxLength = Number.POSITIVE_INFINITY } = limits;
  const room = Math.min(maxResponseLength, maxLength - promptLength);
  if (promptLength <= maxPromptLength && room >= 1) return room;
  const limit = Math.min(maxPromptLength, maxLength - 1);
  throw new RolloutEnded("max_prompt_length_exceeded", `a prompt of ${promptLength} tokens; the limit is ${limit}`);
}
