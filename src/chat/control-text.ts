/**
 * Text cannot write control tokens. A tokenizer takes `<|im_end|>` for the control token wherever it stands in a rendered
 * conversation, also in the middle of a tool's result, which could so end its turn and begin another one.
 *
 * 1. Before the template is rendered, each control token's text in messages, calls and tools is cut by a seam: a character that
 *    occurs in none of them. The template moves, trims and escapes such text like any other.
 * 2. The rendered text is encoded without the seams. A control token that spans one is ordinary text; the template's own are not.
 *    The tokenizer then has secret names for its control tokens, which replace the template's marks, so that ordinary text is
 *    split and merged as if the control token did not exist.
 */
import { randomInt } from "node:crypto";
import { isDeepStrictEqual } from "node:util";
import { parseJson } from "../base/json.ts";
import { isObject } from "../base/values.ts";
import type { ChatMessage, Content, ToolCall, ToolDefinition } from "./messages.ts";
import type { ReplyFormat } from "./reply-format.ts";

export interface ControlToken {
  text: string;
  /** The tokenizer drops it from decoded text. */
  special: boolean;
}

/**
 * The added tokens that are control tokens: the special ones, those that the template or a format of replies writes, and those
 * that look like `<|mark|>`. Others, such as Gemma's `<table>` and runs of spaces, are text.
 *
 * @param sources texts of templates, and marks of formats
 */
export function controlTokens(added: readonly ControlToken[], sources: readonly string[]): ControlToken[] {
  return added.filter(({ text, special }) => {
    if ([...text].length < 2) return false;
    if (special || /^<[|｜].*[|｜]>$/.test(text)) return true;
    return /[<[\]|｜]/.test(text) && sources.some((source) => source.includes(text));
  });
}

// Seams.

/** Finds where strings must be cut. */
interface Cutter {
  /** Whether a string has to be cut. */
  cuts(text: string): boolean;
  cut(text: string, seam: string): string;
}

function createCutter(marks: readonly string[]): Cutter {
  const escaped = marks.map((mark) => mark.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&"));
  const starts = new RegExp(`(?=${escaped.join("|")})`, "gu");
  const inside = new RegExp(escaped.join("|"), "u");
  // A mark may be completed by the text that the template writes next to the string.
  const beginnings = new Set(marks.flatMap((mark) => parts(mark, (size) => mark.slice(0, size))));
  const ends = new Set(marks.flatMap((mark) => parts(mark, (size) => mark.slice(-size))));
  const longest = Math.max(0, ...marks.map(({ length }) => length)) - 1;
  const partial = (text: string, known: ReadonlySet<string>, part: (size: number) => string) => {
    for (let size = Math.min(longest, text.length); size > 0; size--) if (known.has(part(size))) return size;
    return 0;
  };
  const atEnd = (text: string) => partial(text, beginnings, (size) => text.slice(-size));
  const atStart = (text: string) => partial(text, ends, (size) => text.slice(0, size));
  return {
    cuts: (text) => marks.length > 0 && (inside.test(text) || atEnd(text) > 0 || atStart(text) > 0),
    cut(text, seam) {
      const end = atEnd(text);
      const places = new Set([...text.matchAll(starts)].map(({ index }) => index + sizeOfFirst(text, index)));
      if (end > 0) places.add(text.length - end + sizeOfFirst(text, text.length - end));
      if (atStart(text) > 0) places.add(0);
      const sorted = [...places].sort((left, right) => left - right);
      return [0, ...sorted].map((from, index) => text.slice(from, sorted[index])).join(seam);
    },
  };
}

const parts = (mark: string, part: (size: number) => string) =>
  Array.from({ length: mark.length - 1 }, (_, index) => part(index + 1));

const sizeOfFirst = (text: string, at: number) => ((text.codePointAt(at) ?? 0) > 0xffff ? 2 : 1);

/** A string that none of the texts contains. Letters of the Yi script, which no template changes or escapes. */
function unusedText(texts: readonly string[]): string {
  for (let length = 1; ; length++) {
    for (let tries = 0; tries < 20; tries++) {
      const letters = Array.from({ length }, () => String.fromCodePoint(randomInt(0xa000, 0xa48c)));
      // Equal letters could overlap with the text around them.
      if (new Set(letters).size < length) continue;
      const found = letters.join("");
      const escaped = asEscapes(found);
      if (texts.every((text) => !text.includes(found) && !text.includes(escaped))) return found;
    }
  }
}

/** As Python's `json.dumps` writes the letters if a template asks it to. */
const asEscapes = (letters: string) =>
  letters
    .split("")
    .map((letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`)
    .join("");

/** A conversation whose texts are cut at `seam`; undefined if nothing had to be cut. */
interface Guarded {
  messages: readonly ChatMessage[];
  tools: readonly ToolDefinition[];
  seam: string | undefined;
}

export type Guard = (messages: readonly ChatMessage[], tools: readonly ToolDefinition[]) => Guarded;

/**
 * An assistant's own text keeps the marks of thinking, which templates look for, and, if no tools are offered, those of tool calls,
 * which its client then parses itself.
 */
export function createGuard(controls: readonly ControlToken[], { thinking, split }: ReplyFormat): Guard {
  if (controls.length === 0) return (messages, tools) => ({ messages, tools, seam: undefined });
  // The marks of a format with several messages also end turns.
  const own = split ? [] : ["<think>", "</think>", thinking?.open, thinking?.close];
  const cutterOf = (kept: (token: ControlToken) => boolean) =>
    createCutter(controls.filter((token) => !kept(token)).map(({ text }) => text));
  const isThinking = ({ text }: ControlToken) => own.includes(text);
  const everywhere = cutterOf(() => false);
  const inReply = cutterOf(isThinking);
  const inReplyWithoutTools = cutterOf((token) => isThinking(token) || !token.special);

  return (messages, tools) => {
    const replies = tools.length > 0 ? inReply : inReplyWithoutTools;
    const texts: string[] = [];
    let needed = false;
    const look = (text: string, cutter: Cutter) => {
      texts.push(text);
      needed ||= cutter.cuts(text);
      return text;
    };
    mapConversation(messages, tools, everywhere, replies, look);
    if (!needed) return { messages, tools, seam: undefined };
    const seam = unusedText(texts);
    const cut = (text: string, cutter: Cutter) => (cutter.cuts(text) ? cutter.cut(text, seam) : text);
    return { ...mapConversation(messages, tools, everywhere, replies, cut), seam };
  };
}

/** All texts of a conversation that a template may write. */
export function textsOf(messages: readonly ChatMessage[], tools: readonly ToolDefinition[]): string[] {
  const texts: string[] = [];
  const none = createCutter([]);
  mapConversation(messages, tools, none, none, (text) => {
    texts.push(text);
    return text;
  });
  return texts;
}

type MapText = (text: string, cutter: Cutter) => string;

function mapConversation(
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  everywhere: Cutter,
  replies: Cutter,
  map: MapText,
) {
  const text = (given: string) => map(given, everywhere);
  return {
    messages: messages.map((message): ChatMessage => {
      const { role, content, reasoning, toolCalls, toolCallId, name } = message;
      return {
        ...message,
        content: mapContent(content, (given) => map(given, role === "assistant" ? replies : everywhere)),
        ...(reasoning === undefined ? {} : { reasoning: text(reasoning) }),
        ...(toolCalls === undefined ? {} : { toolCalls: toolCalls.map((call) => mapCall(call, text)) }),
        ...(toolCallId === undefined ? {} : { toolCallId: text(toolCallId) }),
        ...(name === undefined ? {} : { name: text(name) }),
      };
    }),
    tools: tools.map((tool) => mapValue(tool, text) as ToolDefinition),
  };
}

function mapContent(content: Content, text: (given: string) => string): Content {
  if (typeof content === "string") return text(content);
  // Only of messages that no template gets: see `requireContent`.
  if (!Array.isArray(content)) return content;
  return content.map((part) => (part.type === "text" ? { ...part, text: text(part.text) } : part));
}

function mapCall(call: ToolCall, text: (given: string) => string): ToolCall {
  const given = mapValue(call.arguments, text) as ToolCall["arguments"];
  const { id, name, argumentsText, writtenId } = call;
  const mapped: ToolCall = { id: text(id), name: text(name), arguments: given };
  if (writtenId !== undefined) mapped.writtenId = text(writtenId);
  if (argumentsText === undefined) return mapped;
  if (isDeepStrictEqual(given, call.arguments)) return { ...mapped, arguments: call.arguments, argumentsText };
  // Escapes may hide a mark in the text.
  const cut = text(argumentsText);
  return { ...mapped, argumentsText: isTextOf(cut, given) ? cut : JSON.stringify(given) };
}

function isTextOf(json: string, value: unknown): boolean {
  try {
    return isDeepStrictEqual(parseJson(json), value);
  } catch {
    return false;
  }
}

function mapValue(value: unknown, text: (given: string) => string): unknown {
  if (typeof value === "string") return text(value);
  if (Array.isArray(value)) return value.map((item) => mapValue(item, text));
  if (!isObject(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [text(key), mapValue(item, text)]));
}

// Encoding without the seams.

/** Where a text must not be taken for a control token. */
export interface TextGuard {
  /** Offsets that no control token may span. */
  seams: readonly number[];
  controls: readonly string[];
}

/** @returns the text without the seams, and their offsets */
export function takeSeams(text: string, seam: string | undefined): { text: string; seams: number[] } {
  if (seam === undefined) return { text, seams: [] };
  const escaped = asEscapes(seam);
  const pieces = text.split(seam).flatMap((piece) => piece.split(escaped));
  const seams: number[] = [];
  let length = 0;
  for (const piece of pieces.slice(0, -1)) {
    length += piece.length;
    seams.push(length);
  }
  return { text: pieces.join(""), seams };
}

/** The control tokens of a text, longest first at each place, and whether each is only text because a seam cuts it. */
function* findControls(text: string, { seams, controls }: TextGuard) {
  const known = new Set(controls);
  const lengths = [...new Set(controls.map(({ length }) => length))].sort((left, right) => right - left);
  const asClass = [...new Set(controls.map((control) => asEscapes(control.charAt(0))))].join("");
  const firsts = new RegExp(`[${asClass}]`, "g");
  let next = 0;
  for (let found = firsts.exec(text); found !== null; found = firsts.exec(text)) {
    const at = found.index;
    while ((seams[next] ?? Infinity) <= at) next++;
    const seam = seams[next] ?? Infinity;
    const marks = lengths.map((length) => text.slice(at, at + length)).filter((mark) => known.has(mark));
    const written = marks.find((mark) => at + mark.length <= seam);
    if (written !== undefined) {
      yield { at, mark: written, isText: false };
      firsts.lastIndex = at + written.length;
    } else if (marks[0] !== undefined) yield { at, mark: marks[0], isText: true };
  }
}

/** How many texts would have become control tokens without the seams. */
export function countTextMarks(text: string, guard: TextGuard): number {
  if (guard.seams.length === 0) return 0;
  let count = 0;
  for (const { isText } of findControls(text, guard)) if (isText) count++;
  return count;
}

/** Secret names of control tokens, and what they are the names of. */
export interface SecretNames {
  /** The content of tokenizer.json with the secret names. */
  rename(content: Record<string, unknown>): Record<string, unknown>;
  /** The text with the secret names of the control tokens that no seam cuts. */
  hide(text: string, seams: readonly number[]): string;
}

/** Letters and digits only, which no normalizer changes. */
export function secretNames(controls: readonly string[]): SecretNames {
  const secret = Array.from({ length: 24 }, () => randomInt(36).toString(36)).join("");
  const names = new Map(controls.map((control, index) => [control, `${secret}x${index.toString(36)}z`]));
  const rename = (value: unknown): unknown => {
    if (typeof value === "string") return names.get(value) ?? value;
    if (Array.isArray(value)) return value.map(rename);
    if (!isObject(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([key, part]) => [names.get(key) ?? key, rename(part)]));
  };
  return {
    rename(content) {
      const { model, added_tokens: added, post_processor: processor, ...rest } = content;
      const { merges, ...vocabulary } = isObject(model) ? model : {};
      return {
        ...rest,
        added_tokens: rename(added),
        post_processor: rename(processor),
        model: { ...(rename(vocabulary) as object), ...(merges === undefined ? {} : { merges }) },
      };
    },
    hide(text, seams) {
      const pieces: string[] = [];
      let from = 0;
      for (const { at, mark, isText } of findControls(text, { seams, controls })) {
        if (isText) continue;
        pieces.push(text.slice(from, at), names.get(mark) ?? mark);
        from = at + mark.length;
      }
      return [...pieces, text.slice(from)].join("");
    },
  };
}
