/** A model's chat: its tokenizer, its template and its format of replies as one object. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { UserError } from "../base/errors.ts";
import { ownValue } from "../base/values.ts";
import { type ControlToken, controlTokens, countTextMarks, createGuard, takeSeams } from "./control-text.ts";
import type { ChatMessage, ParsedReply, ReplyProblem, ToolDefinition } from "./messages.ts";
import { type Renderer, renderers } from "./renderers.ts";
import {
  either,
  noCalls,
  type ReplyFormat,
  type SplitReply,
  type ThinkingMarks,
  type WrittenCalls,
} from "./reply-format.ts";
import { detectFormat, formatMarks, hermes } from "./reply-formats.ts";
import { compileTemplate, findTemplate, type RenderText, type TemplateSources } from "./template.ts";
import {
  encodeElsewhere,
  incrementalDecoder,
  openTokenizer,
  readJson,
  TextTooLong,
  type Tokenizer,
  type TokenizerEncodeOptions,
} from "./tokenizer.ts";
import type { Chat, EncodeOptions, GuardOptions, RenderOptions } from "./types.ts";

// Splits a reply's text into thinking, tool calls and content. Works without tokens.

export interface ParseContext {
  /** The generation prompt began the thinking. */
  thinking: boolean;
  /** The offered tools. Without tools, calls are text. */
  tools: readonly ToolDefinition[];
  callId: (index: number) => string;
}

export function parseReply(text: string, format: ReplyFormat, context: ParseContext): ParsedReply {
  const calls = context.tools.length > 0 ? format.calls : undefined;
  const readCalls = (part: string) => calls?.read(part, context.tools) ?? noCalls(part);
  const split = splitReply(text, format, { begun: context.thinking, starts: calls?.starts ?? [], readCalls });
  const found = readCalls(split.content);
  const whole = split.reasoning === undefined && found.calls.length === 0;
  return {
    content: whole ? found.content : found.content.trim(),
    reasoning: split.reasoning,
    toolCalls: found.calls.map((call, index) => ({ id: context.callId(index), ...call })),
    problems: [...split.problems, ...found.problems],
  };
}

interface SplitContext {
  begun: boolean;
  starts: readonly string[];
  readCalls: (text: string) => WrittenCalls;
}

function splitReply(text: string, { split, thinking }: ReplyFormat, context: SplitContext): SplitReply {
  if (split) return split(text);
  return thinking ? splitThinking(text, thinking, context) : { content: text, problems: [] };
}

/**
 * Thinking ends at the first closing mark that is not quoted by a tool call, or at the end of the text if it was begun and not
 * closed.
 */
function splitThinking(text: string, { open, close }: ThinkingMarks, context: SplitContext): SplitReply {
  const { begun } = context;
  const opened = text.trimStart().startsWith(open);
  const start = opened ? text.indexOf(open) + open.length : 0;
  const end = closingMark(text, start, close, context);
  if (end >= 0) {
    const thought = text.slice(start, end);
    const content = text.slice(end + close.length);
    const problems = lostCalls(text.slice(start), thought, content, close, opened || begun, context);
    return { reasoning: thought.trim(), content, problems };
  }
  if (!opened && !begun) return { content: text, problems: [] };
  const reasoning = text.slice(start).trim();
  const message = `the thinking has no ${close}, so there is no answer`;
  return { reasoning, content: "", problems: [{ kind: "unclosed_thinking", message, text: reasoning }] };
}

const hasStart = (text: string, starts: readonly string[]) => starts.some((start) => text.includes(start));

/** The first closing mark outside of calls; -1 if there is none. */
function closingMark(text: string, from: number, close: string, { starts, readCalls }: SplitContext): number {
  const first = text.indexOf(close, from);
  if (first < 0 || !hasStart(text.slice(from, first), starts)) return first;
  const { spans } = readCalls(text.slice(from));
  let end = first;
  for (const [spanStart, spanEnd] of spans) {
    while (end >= 0 && end < from + spanEnd && end >= from + spanStart) end = text.indexOf(close, end + close.length);
  }
  return end;
}

/**
 * Calls that the end of the thinking cuts off, as a problem. Calls inside thinking are not meant, unless nothing follows them, or
 * the text is thinking only because of its end.
 */
function lostCalls(
  whole: string,
  thought: string,
  content: string,
  close: string,
  marked: boolean,
  { starts, readCalls }: SplitContext,
): ReplyProblem[] {
  if (!hasStart(thought, starts)) return [];
  const after = readCalls(content);
  if (after.calls.length > 0 || after.problems.length > 0) return [];
  const isMeant = !marked || content.trim() === "";
  const isCut = readCalls(whole).problems.some(
    ({ kind, text }) => kind === "malformed_tool_call" && text.includes(close),
  );
  if (!isCut && !(isMeant && readCalls(thought).calls.length > 0)) return [];
  return [
    {
      kind: "malformed_tool_call",
      message: `a tool call is in the text before ${close}, which is thinking`,
      text: thought,
    },
  ];
}

/** Runs the same work once for several callers, and aborts it when no caller waits for it. */
export function shareWork<Value>() {
  const running = new Map<string, { result: Promise<Value>; waiting: number; stop: AbortController }>();

  /** @throws the signal's reason if aborted */
  return async (
    key: string,
    signal: AbortSignal | undefined,
    start: (signal: AbortSignal) => Promise<Value>,
  ): Promise<Value> => {
    signal?.throwIfAborted();
    let work = running.get(key);
    if (work === undefined) {
      const stop = new AbortController();
      const result = start(stop.signal).finally(() => running.get(key)?.stop === stop && running.delete(key));
      work = { result, waiting: 0, stop };
      running.set(key, work);
    }
    const shared = work;
    shared.waiting++;
    let leave = () => {};
    const left = new Promise<never>((_, reject) => {
      leave = () => reject(signal?.reason);
      signal?.addEventListener("abort", leave, { once: true });
    });
    try {
      return await Promise.race([shared.result, left]);
    } finally {
      signal?.removeEventListener("abort", leave);
      if (--shared.waiting === 0) {
        if (running.get(key) === shared) running.delete(key);
        shared.stop.abort(signal?.reason);
      }
    }
  };
}

// Assembles a `Chat` from a tokenizer, a renderer of messages and a parser of replies.

/** Encodes on another thread. */
type Encode = (text: string, options: TokenizerEncodeOptions, signal?: AbortSignal) => Promise<Int32Array>;

export interface ChatParts {
  encode: Tokenizer["encode"];
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
  /** The control tokens that text cannot write in guarded conversations. Default none. */
  controls?: readonly ControlToken[];
  /** Whether conversations are guarded. Default true. */
  guardsText?: boolean | undefined;
  ids: { bos: number | null; eos: number | null; pad: number | null };
  /** Further tokens that end a turn. */
  stopIds?: readonly number[];
  accumulateReasoning?: boolean;
  /** Defaults of the render options. */
  thinking?: boolean | undefined;
  reasoningEffort?: string | undefined;
}

const mark = "Qz7reply7zQ";

/** An encoded conversation, and how many control tokens its texts contain. */
interface Opening {
  tokens: Int32Array;
  marks: number;
}

/** Texts of more characters, which take over 10 to 20 ms to encode, are encoded on another thread. */
const longText = 30_000;

export function assembleChat(parts: ChatParts): Chat {
  const { decode, format, addSpecial = false, specials, ids } = parts;
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

  const guard = createGuard(parts.controls ?? [], format);
  const controls = (parts.controls ?? []).map(({ text }) => text);
  const renderGuarded: Chat["renderGuarded"] = (messages, { guardText, ...options } = {}) => {
    if (!guardText) return { text: renderText(messages, options), seam: undefined };
    const { tools = [], ...rest } = options;
    const guarded = guard(messages, tools);
    const offered = tools.length > 0 ? { tools: guarded.tools } : {};
    return { text: renderText(guarded.messages, { ...rest, ...offered }), seam: guarded.seam };
  };

  /** Without the seams, which are named if they keep text from becoming control tokens. */
  function unguard(text: string, { addSpecial, seam, onTextMarks }: EncodeOptions) {
    const clean = takeSeams(text, seam);
    const guarded = { seams: clean.seams, controls };
    const marks = countTextMarks(clean.text, guarded);
    if (marks > 0) onTextMarks?.(marks);
    return { text: clean.text, options: { addSpecial, ...(marks > 0 ? { guard: guarded } : {}) }, marks };
  }

  const encode: Chat["encode"] = (text, given = {}) => {
    const { text: clean, options } = unguard(text, given);
    return parts.encode(clean, options);
  };

  const encodeLater: Chat["encodeLater"] = async (text, { maxPromptTokens = Infinity, signal, ...given } = {}) => {
    signal?.throwIfAborted();
    const { text: clean, options } = unguard(text, given);
    const least = parts.leastTokens?.(clean) ?? 0;
    if (least > maxPromptTokens) throw new TextTooLong(least);
    if (parts.encodeElsewhere === undefined || clean.length < longText) return parts.encode(clean, options);
    return parts.encodeElsewhere(clean, options, signal);
  };

  const latest = rememberLatest<Opening>(64);
  /** Prompts of groups that are being encoded on another thread. */
  const coming = shareWork<Opening>();
  function encodeOpening(messages: readonly ChatMessage[], options: RenderOptions & GuardOptions): Opening {
    const { text, seam } = renderGuarded(messages, options);
    let marks = 0;
    const count = (found: number) => {
      marks = found;
    };
    return { tokens: encode(text, { addSpecial, seam, onTextMarks: count }), marks };
  }
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
      const key = parts.readsClock ? undefined : openingKey(messages, options);
      const known = key === undefined ? undefined : latest.get(key);
      const found = known ?? encodeOpening(messages, options);
      if (found.marks > 0) options.onTextMarks?.(found.marks);
      return (key === undefined ? found : latest.keep(key, found)).tokens;
    },
    async renderLater(messages, { maxPromptTokens, signal, onTextMarks, ...options } = {}) {
      const key = parts.readsClock ? undefined : openingKey(messages, options);
      const known = key === undefined ? undefined : latest.get(key);
      const report = ({ tokens, marks }: Opening) => {
        if (marks > 0) onTextMarks?.(marks);
        return tokens;
      };
      if (key !== undefined && known !== undefined) return report(latest.keep(key, known));
      const { text, seam } = renderGuarded(messages, options);
      const encoded = async (stop = signal): Promise<Opening> => {
        let marks = 0;
        const count = (found: number) => {
          marks = found;
        };
        const later = { addSpecial, seam, maxPromptTokens, signal: stop, onTextMarks: count };
        const tokens = await encodeLater(text, later);
        return { tokens, marks };
      };
      if (key === undefined) return report(await encoded());
      const found = await (text.length < longText ? encoded() : coming(`${maxPromptTokens} ${key}`, signal, encoded));
      return report(latest.keep(key, found));
    },
    renderGuarded,
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
    guardsText: parts.guardsText ?? true,
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
function openingKey(messages: readonly ChatMessage[], options: RenderOptions & GuardOptions): string | undefined {
  if (messages.some(({ role }) => role === "assistant" || role === "tool")) return undefined;
  const { tools, thinking, reasoningEffort, addGenerationPrompt, guardText } = options;
  return JSON.stringify([messages, tools, thinking, reasoningEffort, addGenerationPrompt, guardText]);
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

// Opens a model folder's tokenizer and chat template as one `Chat`.

export interface LoadChatOptions {
  /**
   * How conversations are rendered and replies parsed; null uses the model's own template. `"plain"` is for base models;
   * see `renderers`.
   */
  rendererName?: string | null;
  /** A renderer of the user's (`defineRenderer`), instead of a name. */
  renderer?: Renderer | undefined;
  /** No thinking before an answer. */
  disableThinking?: boolean;
  /** Keep the thinking of earlier replies in prompts even if the template drops it. */
  accumulateReasoning?: boolean;
  /** Control tokens in the text of messages, tool results and arguments are control tokens, as in transformers. */
  controlTokensInText?: boolean;
  /** For templates with a `reasoning_effort`. */
  reasoningEffort?: string;
  /** Called for settings that have no effect with this model, and for tools that its template does not support. */
  log?: ((line: string) => void) | undefined;
}

/**
 * @param directory holds tokenizer.json, tokenizer_config.json and, in recent models, chat_template.jinja
 * @throws UserError if the files are missing, broken or have no chat template, or the renderer is unknown
 */
export function loadChat(directory: string, options: LoadChatOptions = {}): Chat {
  const tokenizer = openTokenizer(directory);
  const { config, encode, leastTokens, decode, idOf, specials, added } = tokenizer;
  const { rendererName } = options;
  const renderer =
    options.renderer ?? (rendererName == null ? undefined : findRenderer(rendererName, tokenizer, directory));
  const template = renderer?.template;
  const sources: TemplateSources | undefined =
    template === undefined ? findTemplate(directory, config) : { plain: template };
  if (sources === undefined) {
    throw new UserError(`the model in ${directory} has no chat template; it is probably a base model`, {
      hint: "use the instruct version of the model, add a chat_template.jinja to the folder, or set rollout_engine.renderer_name=plain, which writes one message per line without roles",
    });
  }
  const format = renderer ?? detectFormat(sources.plain, sources.tools);
  const { renderText, takesTools } = compileTemplate(sources, config, directory, format.callId);
  const { disableThinking = false, accumulateReasoning = false, controlTokensInText = false, log } = options;
  const { reasoningEffort } = options;
  if (disableThinking && !thinkingMatters(renderText, format))
    log?.(`disable_thinking has no effect: the chat template of ${directory} cannot turn thinking on or off`);
  if (reasoningEffort !== undefined && reasoningEffort !== defaultEffort && !writes(sources, "reasoning_effort"))
    log?.(`reasoning_effort has no effect: the chat template of ${directory} does not use it`);
  return assembleChat({
    encode,
    leastTokens,
    decode,
    specials,
    controls: controlTokens(added, [sources.plain, sources.tools ?? "", ...formatMarks]),
    guardsText: !controlTokensInText,
    accumulateReasoning,
    encodeElsewhere: encodeElsewhere(directory),
    readsClock: writes(sources, "strftime_now"),
    renderText: takesTools ? renderText : logTools(renderText, directory, log),
    format: takesTools ? format : { ...format, calls: either(format.calls, hermes) },
    addSpecial: renderer?.addSpecial ?? false,
    ids: { bos: idOf(config.bos_token), eos: idOf(config.eos_token), pad: idOf(config.pad_token) },
    stopIds: readStopIds(directory),
    thinking: disableThinking ? false : undefined,
    reasoningEffort,
  });
}

/** Logs when tools are first described in the system message. */
function logTools(renderText: RenderText, directory: string, log: LoadChatOptions["log"]): RenderText {
  let logged = false;
  return (messages, options) => {
    if (!logged && options.tools?.length) {
      logged = true;
      log?.(
        `the chat template of ${directory} does not support tools: the system message describes them, and calls are parsed in the format of Hermes; rollout_engine.renderer_name selects another format`,
      );
    }
    return renderText(messages, options);
  };
}

/** The default of templates with a `reasoning_effort`. */
const defaultEffort = "medium";

const writes = ({ plain, tools = "" }: TemplateSources, name: string) => plain.includes(name) || tools.includes(name);

function findRenderer(name: string, { idOf }: Tokenizer, directory: string): Renderer {
  const renderer = ownValue<Renderer>(renderers, name);
  if (renderer === undefined) {
    throw new UserError(`the renderer ${JSON.stringify(name)} does not exist`, {
      hint: `the renderers are ${Object.keys(renderers).join(", ")}; a file with defineRenderer ends in .ts or .js`,
    });
  }
  const missing = renderer.needs?.find((token) => idOf(token) === null);
  if (missing === undefined) return renderer;
  throw new UserError(`the renderer ${name} writes ${missing}, which is not a token of the model in ${directory}`, {
    hint: "set rollout_engine.renderer_name to null to use the model's own template",
  });
}

/** Whether thinking can be turned off: by the template, or by closing the tag that its generation prompt opens. */
function thinkingMatters(renderText: RenderText, { thinking }: ReplyFormat): boolean {
  const asked = [{ role: "user", content: "?" }] as const;
  const on = renderText(asked, { thinking: true });
  if (on !== renderText(asked, { thinking: false })) return true;
  return thinking !== undefined && on.trimEnd().endsWith(thinking.open);
}

const generationConfig = z.looseObject({ eos_token_id: z.union([z.number(), z.array(z.number())]).nullish() });

/** Llama 3 and others end turns with tokens that only generation_config.json names. */
function readStopIds(directory: string): number[] {
  const file = join(directory, "generation_config.json");
  if (!existsSync(file)) return [];
  const parsed = generationConfig.safeParse(readJson(file));
  if (!parsed.success) throw new UserError(`${file}: ${z.prettifyError(parsed.error)}`);
  return [parsed.data.eos_token_id ?? []].flat();
}
