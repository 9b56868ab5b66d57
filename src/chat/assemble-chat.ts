/** Makes a `Chat` of its parts: a tokenizer, a way to write messages as text, a way to read replies. */
import { UserError } from "../errors.ts";
import { incrementalDecoder } from "./incremental-decoder.ts";
import type { ChatMessage } from "./messages.ts";
import { parseReply, type ReplySyntax } from "./parse-reply.ts";
import { shareWork } from "./share-work.ts";
import { TextTooLong } from "./token-bounds.ts";
import type { Chat, EncodeOptions, RenderOptions } from "./types.ts";

/** On another thread. */
type Encode = (text: string, options: EncodeOptions, signal?: AbortSignal) => Promise<Int32Array>;

export interface ChatParts {
  encode: Chat["encode"];
  /** The same on another thread. */
  encodeElsewhere?: Encode;
  /** Tokens that a text becomes at least. Default 0: its length says nothing. */
  leastTokens?: (text: string) => number;
  decode: Chat["decode"];
  renderText: (messages: readonly ChatMessage[], options: RenderOptions) => string;
  /** The same messages may be written otherwise later: the template writes the date. Default false. */
  readsClock?: boolean;
  syntax: ReplySyntax;
  /** The tokenizer's own tokens (BOS) go before a rendered conversation; a chat template writes them itself. */
  addSpecial?: boolean;
  /** Texts of the special tokens, which are no part of what a reply says. */
  specials: readonly string[];
  ids: { bos: number | null; eos: number | null; pad: number | null };
  /** Further tokens that end a turn. */
  stopIds?: readonly number[];
  accumulateReasoning?: boolean;
  /** Used where a call does not say otherwise. */
  thinking?: boolean;
  reasoningEffort?: string;
}

const mark = "Qz7reply7zQ";

/** Characters that take about as long to encode as it may take to answer a call: 10 to 20 ms. */
const longText = 30_000;

export function assembleChat(parts: ChatParts): Chat {
  const { encode, decode, syntax, addSpecial = false, specials, ids } = parts;
  const defaults: RenderOptions = {
    ...(parts.thinking === undefined ? {} : { thinking: parts.thinking }),
    ...(parts.reasoningEffort === undefined ? {} : { reasoningEffort: parts.reasoningEffort }),
  };
  const renderText: Chat["renderText"] = (messages, given) => {
    const options = { ...defaults, ...given };
    const text = parts.renderText(messages, options);
    if (options.tools?.length && syntax.calls === undefined) {
      throw new UserError(
        "this model's chat template takes tools, but its way of calling them is not one that Hone reads",
        {
          hint: "if it is one of another family's, name that: rollout_engine.renderer_name=qwen, llama3 or mistral",
        },
      );
    }
    // A template that always opens thinking has it closed at once where there shall be none.
    const closes = options.thinking === false && options.addGenerationPrompt !== false && endsInThinking(text);
    return closes ? `${text.trimEnd()}\n\n</think>\n\n` : text;
  };

  const encodeLater: Chat["encodeLater"] = async (text, { mostTokens = Infinity, signal, ...options } = {}) => {
    signal?.throwIfAborted();
    const least = parts.leastTokens?.(text) ?? 0;
    if (least > mostTokens) throw new TextTooLong(least);
    if (parts.encodeElsewhere === undefined || text.length < longText) return encode(text, options);
    return parts.encodeElsewhere(text, options, signal);
  };

  const latest = rememberLatest<Int32Array>(64);
  /** Prompts of groups that are being encoded elsewhere. */
  const coming = shareWork<Int32Array>();
  const turnEnd = turnEndOf(renderText, specials);
  const stopIds = [
    ...new Set([
      ...(turnEnd === undefined ? [] : encode(turnEnd)),
      ...(ids.eos === null ? [] : [ids.eos]),
      ...(parts.stopIds ?? []),
    ]),
  ];
  const withoutStop = (tokens: ArrayLike<number>) => {
    const list = Array.from(tokens);
    return stopIds.includes(list.at(-1) ?? -1) ? list.slice(0, -1) : list;
  };
  const withoutSpecials = (text: string) => specials.reduce((rest, special) => rest.replaceAll(special, ""), text);

  const opening = new Map<string, boolean>();
  /** Whether the generation prompt leaves a `<think>` open. */
  function opensThinking(options: RenderOptions): boolean {
    const { thinking, reasoningEffort } = { ...defaults, ...options };
    const key = JSON.stringify([thinking, reasoningEffort]);
    const known = opening.get(key);
    if (known !== undefined) return known;
    const opens = endsInThinking(renderText([{ role: "user", content: mark }], { ...options, tools: [] }));
    opening.set(key, opens);
    return opens;
  }

  const thinkingOf: Chat["thinkingOf"] = (options = {}) =>
    syntax.thinks ? (opensThinking(options) ? "begun" : "possible") : "never";

  return {
    render(messages, options = {}) {
      const tokens = () => encode(renderText(messages, options), { addSpecial });
      const key = parts.readsClock ? undefined : openingKey(messages, options);
      return key === undefined ? tokens() : latest.keep(key, latest.get(key) ?? tokens());
    },
    async renderLater(messages, { mostTokens, signal, ...options } = {}) {
      const key = parts.readsClock ? undefined : openingKey(messages, options);
      const known = key === undefined ? undefined : latest.get(key);
      if (key !== undefined && known !== undefined) return latest.keep(key, known);
      const text = renderText(messages, options);
      const encoded = (stop = signal) => encodeLater(text, { addSpecial, mostTokens, signal: stop });
      if (key === undefined) return encoded();
      return latest.keep(
        key,
        await (text.length < longText ? encoded() : coming(`${mostTokens} ${key}`, signal, encoded)),
      );
    },
    renderText,
    parse(reply, { callId = (index: number) => `call_${index}`, ...options } = {}) {
      const text = typeof reply === "string" ? reply : decode(withoutStop(reply));
      const thinking = thinkingOf(options) === "begun";
      const tools = (options.tools?.length ?? 0) > 0;
      const parsed = parseReply(text, syntax, { thinking, tools, callId });
      const { content, reasoning } = parsed;
      return {
        ...parsed,
        content: withoutSpecials(content),
        ...(reasoning === undefined ? {} : { reasoning: withoutSpecials(reasoning) }),
      };
    },
    thinkingOf,
    withoutSpecials,
    encode,
    encodeLater,
    decode,
    incrementalDecoder: (options) => incrementalDecoder((tokens) => decode(tokens, options)),
    bosId: ids.bos,
    eosId: ids.eos,
    padId: ids.pad,
    stopIds,
    accumulateReasoning: parts.accumulateReasoning ?? false,
    turnEnd,
  };
}

/**
 * The rollouts of a group begin with the same prompt, which then is rendered, encoded, and kept, once.
 *
 * @returns all that such a prompt hangs on, as text; undefined of conversations in which something was said already, which
 * differ from rollout to rollout
 */
function openingKey(messages: readonly ChatMessage[], options: RenderOptions): string | undefined {
  if (messages.some(({ role }) => role === "assistant" || role === "tool")) return undefined;
  const { tools, thinking, reasoningEffort, addGenerationPrompt } = options;
  return JSON.stringify([messages, tools, thinking, reasoningEffort, addGenerationPrompt]);
}

function rememberLatest<Value>(size: number) {
  const known = new Map<string, Value>();
  return {
    get: (key: string) => known.get(key),
    /** Also of what is known: it counts as the newest then. */
    keep(key: string, value: Value): Value {
      known.delete(key);
      known.set(key, value);
      if (known.size > size) known.delete(known.keys().next().value!);
      return value;
    },
  };
}

const endsInThinking = (prompt: string) => prompt.trimEnd().endsWith("<think>");

/**
 * The special token that the template writes after an assistant's message, if any. Tried on two messages; a template
 * that refuses even those is found out at its first use.
 */
function turnEndOf(renderText: Chat["renderText"], specials: readonly string[]): string | undefined {
  let text: string;
  try {
    const messages = [
      { role: "user", content: "a" },
      { role: "assistant", content: mark },
    ] as const;
    text = renderText(messages, { addGenerationPrompt: false });
  } catch {
    return undefined;
  }
  const after = text.slice(text.lastIndexOf(mark) + mark.length).trimStart();
  return specials.find((special) => special !== "" && after.startsWith(special));
}
