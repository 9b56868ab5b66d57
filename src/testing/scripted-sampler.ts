/** A sampler that answers from a script: for testing agents, workflows and rewards without a model. */
import type { Sample, SampleOptions, SampleRequest, Sampler, SamplingParams } from "../backends/engine.ts";
import type { Vision } from "../chat/images/prepare-images.ts";
import type { TextMessage } from "../chat/messages.ts";
import { RunError } from "../errors.ts";
import { imageLoader } from "../images/load-image.ts";
import { memoryStore } from "../images/media-store.ts";
import type { Media } from "../images/types.ts";
import { type CharacterChat, characterChat, imageCharacter } from "./character-chat.ts";

/** A reply in parts: thinking, then text, then calls of tools. */
export interface ScriptedReply {
  reasoning?: string;
  text?: string;
  toolCalls?: readonly { name: string; arguments?: Readonly<Record<string, unknown>> }[];
}

/** One reply of a script. */
export type ScriptLine = string | ScriptedReply | Int32Array;

/**
 * A scripted reply: text, a reply in parts, or exact tokens of the chat. The end of turn is appended to text if it fits.
 * An image of the prompt is the character U+FFFC in the message and an entry of `media`.
 * A script that throws acts like a failing engine; a script that never settles acts like an engine that hangs.
 */
export type Script = (
  messages: TextMessage[],
  call: { prompt: Int32Array; media: readonly Media[]; params: SamplingParams },
) => ScriptLine | Promise<ScriptLine>;

/**
 * Answers the nth call of each conversation with the nth line, and all later calls with the last line.
 *
 * @example
 * runWorkflow({ workflow, rows, reply: lines({ toolCalls: [{ name: "add", arguments: { a: 1, b: 2 } }] }, "It is 3.") })
 */
export function lines(...all: readonly [ScriptLine, ...ScriptLine[]]): Script {
  return (messages) => {
    const spoken = messages.filter(({ role }) => role === "assistant").length;
    return all[Math.min(spoken, all.length - 1)]!;
  };
}

/** As the character chat writes it. */
function spell({ reasoning, text = "", toolCalls = [] }: ScriptedReply): string {
  const thought = reasoning === undefined ? "" : `<think>\n${reasoning}\n</think>\n\n`;
  const calls = toolCalls.map(({ name, arguments: given = {} }) => {
    return `<tool_call>\n${JSON.stringify({ name, arguments: given })}\n</tool_call>`;
  });
  return thought + [...(text === "" ? [] : [text]), ...calls].join("\n");
}

/**
 * A sampler whose replies a function writes, with a chat whose tokens are characters.
 *
 * @example
 * const { sampler, chat } = scriptedSampler((messages) => (messages.at(-1)?.content === "2+2" ? "4" : "no idea"));
 */
export function scriptedSampler(script: Script): { sampler: Sampler; chat: CharacterChat; vision: Vision } {
  const chat = characterChat();
  const image = chat.encode(imageCharacter);
  const vision: Vision = {
    placeholder: { text: imageCharacter, id: image[0]! },
    tokensOf: async (images) => images.map(() => image),
    loader: imageLoader(memoryStore()),
  };
  const sampler: Sampler = {
    version: -1,
    logprobs: "raw",
    sample: (requests, options) => sample(script, chat, requests, options),
    async load() {
      throw new RunError("a scripted sampler has no weights to load", { hint: "use tabularEngine, which has weights" });
    },
    close: async () => {},
  };
  return { sampler, chat, vision };
}

async function* sample(
  script: Script,
  chat: CharacterChat,
  requests: readonly SampleRequest[],
  { signal, onToken }: SampleOptions = {},
): AsyncGenerator<Sample, void, undefined> {
  const answer = async (
    { prompt, media = [], params, signal: own }: SampleRequest,
    request: number,
  ): Promise<Sample> => {
    const aborted = Promise.race([whenAborted(signal), whenAborted(own)]);
    const replying = (async () => script(chat.messagesOf(prompt), { prompt, media, params }))();
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
  line: ScriptLine,
  { maxTokens, stopStrings, stopIds, ignoreEos }: SamplingParams,
  chat: CharacterChat,
): { tokens: Int32Array; stopReason: "stop" | "length" } {
  const reply = typeof line === "object" && !(line instanceof Int32Array) ? spell(line) : line;
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
