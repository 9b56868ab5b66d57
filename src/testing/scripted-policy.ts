/** A policy that answers from a script: for testing agents, workflows and rewards without a model. It cannot be trained. */
import type { Policy, Sample, SampleOptions, SampleRequest, SamplingParams } from "../backends/engine.ts";
import { RunError } from "../errors.ts";
import type { ChatMessage } from "../trajectories/types.ts";
import { type CharacterChat, characterChat } from "./character-chat.ts";

/**
 * The model's part of the play: text, or exact tokens of the chat. Text is ended with the end of turn where there is
 * room for it. A script that throws is an engine that fails; one that never settles is an engine that hangs.
 */
export type Script = (
  messages: ChatMessage[],
  call: { prompt: Int32Array; params: SamplingParams },
) => string | Int32Array | Promise<string | Int32Array>;

/**
 * @example
 * const { policy, chat } = scriptedPolicy((messages) => (messages.at(-1)?.content === "2+2" ? "4" : "no idea"));
 */
export function scriptedPolicy(script: Script): { policy: Policy; chat: CharacterChat } {
  const chat = characterChat();
  const refuse = async (): Promise<never> => {
    throw new RunError("a scripted policy has no weights", {
      hint: "tabularEngine is the smallest policy that can be trained",
    });
  };
  const policy: Policy = {
    version: -1,
    sample: (requests, options) => sample(script, chat, requests, options),
    forward: refuse,
    forwardBackward: refuse,
    optimStep: refuse,
    publish: refuse,
    zeroGrad: refuse,
    saveState: refuse,
    loadState: refuse,
    export: refuse,
    close: async () => {},
  };
  return { policy, chat };
}

async function* sample(
  script: Script,
  chat: CharacterChat,
  requests: readonly SampleRequest[],
  { signal, onToken }: SampleOptions = {},
): AsyncGenerator<Sample, void, undefined> {
  const answer = async ({ prompt, params, signal: own }: SampleRequest, request: number): Promise<Sample> => {
    const aborted = Promise.race([whenAborted(signal), whenAborted(own)]);
    const replying = (async () => script(chat.messagesOf(prompt), { prompt, params }))();
    const reply = await Promise.race([replying, aborted]);
    const { tokens, stopReason } = reply === undefined ? nothing : cut(reply, params, chat);
    tokens.forEach((token) => {
      onToken?.(request, token, 0);
    });
    // A script is certain of each token: its log-probability is 0.
    return { request, tokens, logprobs: new Float32Array(tokens.length), stopReason, policyVersion: -1 };
  };
  const running = new Map(requests.map((request, index) => [index, answer(request, index)]));
  while (running.size > 0) {
    const finished = await Promise.race(running.values());
    running.delete(finished.request);
    yield finished;
  }
}

const nothing = { tokens: new Int32Array(0), stopReason: "aborted" } as const;

/** A reply within the limits that the request sets: its stop strings, stop ids and number of tokens. */
function cut(
  reply: string | Int32Array,
  { maxTokens, stopStrings, stopIds, ignoreEos }: SamplingParams,
  chat: CharacterChat,
): { tokens: Int32Array; stopReason: "stop" | "length" } {
  const whole = typeof reply === "string" ? [...chat.encode(reply), chat.eosId] : [...reply];
  const ends = ignoreEos ? stopIds : [chat.eosId, ...stopIds];
  let text = "";
  for (const [index, token] of whole.slice(0, maxTokens).entries()) {
    text += chat.decode([token]);
    if (ends.includes(token) || stopStrings.some((stop) => text.includes(stop))) {
      return { tokens: Int32Array.from(whole.slice(0, index + 1)), stopReason: "stop" };
    }
  }
  return { tokens: Int32Array.from(whole.slice(0, maxTokens)), stopReason: "length" };
}

const whenAborted = (signal: AbortSignal | undefined) =>
  new Promise<undefined>((resolve) => {
    if (signal?.aborted) resolve(undefined);
    signal?.addEventListener("abort", () => resolve(undefined), { once: true });
  });
