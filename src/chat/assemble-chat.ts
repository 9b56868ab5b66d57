/** Assembles a `Chat` from a tokenizer, a renderer of messages and a parser of replies. */
import { UserError } from "../errors.ts";
import type { ReplyFormat } from "./formats/format.ts";
import type { ChatMessage } from "./messages.ts";
import { parseReply } from "./parse-reply.ts";
import { shareWork } from "./share-work.ts";
import { incrementalDecoder } from "./tokens/incremental-decoder.ts";
import { TextTooLong } from "./tokens/token-bounds.ts";
import type { Chat, EncodeOptions, RenderOptions } from "./types.ts";

/** Encodes on another thread. */
type Encode = (text: string, options: EncodeOptions, signal?: AbortSignal) => Promise<Int32Array>;

export interface ChatParts {
  encode: Chat["encode"];
  /** The same on another thread. */
  encodeElsewhere?: Encode;
  /** Lower bound of a text's number of tokens. Default 0. */
  leastTokens?: (text: string) => number;
  decode: Chat["decode"];
  renderText: (messages: readonly ChatMessage[], options: RenderOptions) => string;
  /** The template writes the date, so the same messages may be rendered differently later. Default false. */
  readsClock?: boolean;
  format: ReplyFormat;
  /** Add the tokenizer's own tokens (BOS) before a rendered conversation. Most chat templates write them. */
  addSpecial?: boolean;
  /** Texts of the special tokens, which are removed from replies. */
  specials: readonly string[];
  ids: { bos: number | null; eos: number | null; pad: number | null };
  /** Further tokens that end a turn. */
  stopIds?: readonly number[];
  accumulateReasoning?: boolean;
  /** Defaults of the render options. */
  thinking?: boolean | undefined;
  reasoningEffort?: string | undefined;
}

const mark = "Qz7reply7zQ";

/** Texts of more characters, which take over 10 to 20 ms to encode, are encoded on another thread. */
const longText = 30_000;

export function assembleChat(parts: ChatParts): Chat {
  const { encode, decode, format, addSpecial = false, specials, ids } = parts;
  const withDefaults = (options: RenderOptions = {}): RenderOptions => ({
    ...options,
    thinking: options.thinking ?? parts.thinking,
    reasoningEffort: options.reasoningEffort ?? parts.reasoningEffort,
  });
  const renderText: Chat["renderText"] = (messages, given) => {
    const options = withDefaults(given);
    const text = parts.renderText(messages, options);
    if (options.tools?.length && format.calls === undefined) {
      throw new UserError(
        "this model's chat template supports tools, but Hone does not recognize its format of tool calls",
        {
          hint: "if another model family has the same format, name it (rollout_engine.renderer_name=qwen3), else describe the format in a file: see defineRenderer in docs/guide/reply-formats.md",
        },
      );
    }
    // Some templates always open thinking. It is closed at once if thinking is off.
    const closes = options.thinking === false && options.addGenerationPrompt !== false && endsInThinking(text);
    return closes ? `${text.trimEnd()}\n\n${format.thinking?.close}\n\n` : text;
  };

  const encodeLater: Chat["encodeLater"] = async (text, { maxPromptTokens = Infinity, signal, ...options } = {}) => {
    signal?.throwIfAborted();
    const least = parts.leastTokens?.(text) ?? 0;
    if (least > maxPromptTokens) throw new TextTooLong(least);
    if (parts.encodeElsewhere === undefined || text.length < longText) return encode(text, options);
    return parts.encodeElsewhere(text, options, signal);
  };

  const latest = rememberLatest<Int32Array>(64);
  /** Prompts of groups that are being encoded on another thread. */
  const coming = shareWork<Int32Array>();
  const { ends = [], writtenEnds = [], opensNext = [] } = format;
  const turnEnd = turnEndOf(renderText, specials) ?? ends[0];
  /** A text that is not a token of this model ends nothing. */
  const tokensOf = (texts: readonly string[]) =>
    texts.flatMap((text) => [encode(text)].filter(({ length }) => length === 1).flatMap((tokens) => [...tokens]));
  const endIds = turnEnd === undefined ? [] : [...encode(turnEnd)];
  const stopIds = [...new Set([...endIds, ids.eos, ...(parts.stopIds ?? []), ...tokensOf(ends)])].filter(
    (id) => id !== null,
  );
  const withoutStop = (tokens: ArrayLike<number>) => {
    const list = Array.from(tokens);
    return stopIds.includes(list.at(-1) ?? -1) ? list.slice(0, -1) : list;
  };
  const withoutSpecials = (text: string) => specials.reduce((rest, special) => rest.replaceAll(special, ""), text);

  const endsInThinking = (prompt: string) =>
    format.thinking !== undefined && prompt.trimEnd().endsWith(format.thinking.open);
  const opening = new Map<string, boolean>();
  /** Whether the generation prompt leaves a `<think>` open. */
  function opensThinking(options: RenderOptions): boolean {
    const { thinking, reasoningEffort } = withDefaults(options);
    const key = JSON.stringify([thinking, reasoningEffort]);
    const known = opening.get(key);
    if (known !== undefined) return known;
    const opens = endsInThinking(renderText([{ role: "user", content: mark }], { ...options, tools: [] }));
    opening.set(key, opens);
    return opens;
  }

  const thinkingOf: Chat["thinkingOf"] = (options = {}) =>
    format.thinking ? (opensThinking(options) ? "begun" : "possible") : "never";

  return {
    render(messages, options = {}) {
      const tokens = () => encode(renderText(messages, options), { addSpecial });
      const key = parts.readsClock ? undefined : openingKey(messages, options);
      return key === undefined ? tokens() : latest.keep(key, latest.get(key) ?? tokens());
    },
    async renderLater(messages, { maxPromptTokens, signal, ...options } = {}) {
      const key = parts.readsClock ? undefined : openingKey(messages, options);
      const known = key === undefined ? undefined : latest.get(key);
      if (key !== undefined && known !== undefined) return latest.keep(key, known);
      const text = renderText(messages, options);
      const encoded = (stop = signal) => encodeLater(text, { addSpecial, maxPromptTokens, signal: stop });
      if (key === undefined) return encoded();
      return latest.keep(
        key,
        await (text.length < longText ? encoded() : coming(`${maxPromptTokens} ${key}`, signal, encoded)),
      );
    },
    renderText,
    parse(reply, { callId = (index: number) => `call_${index}`, ...options } = {}) {
      const text = typeof reply === "string" ? reply : decode(withoutStop(reply));
      const thinking = thinkingOf(options) === "begun";
      const parsed = parseReply(text, format, { thinking, tools: options.tools ?? [], callId });
      const { content, reasoning } = parsed;
      return {
        ...parsed,
        content: withoutSpecials(content),
        reasoning: reasoning === undefined ? undefined : withoutSpecials(reasoning),
      };
    },
    format,
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
    turnEnds: [...new Set([turnEnd, ...writtenEnds, ...ends])].filter((end) => end !== undefined),
    sharedStopIds: tokensOf(opensNext),
  };
}

/**
 * The rollouts of a group begin with the same prompt, so its tokens are kept.
 *
 * @returns a key of everything that the prompt depends on; undefined for conversations with replies, which differ between
 * rollouts
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
    /** A known value becomes the newest. */
    keep(key: string, value: Value): Value {
      known.delete(key);
      known.set(key, value);
      const [oldest] = known.keys();
      if (known.size > size && oldest !== undefined) known.delete(oldest);
      return value;
    },
  };
}

/**
 * The special token that the template writes after an assistant's message, if any. A template that refuses two messages
 * throws at its first use.
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
