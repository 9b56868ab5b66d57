/** A reply while it is being sampled: the text of its content and thinking that can no longer change. */
import type { CallOptions } from "../../chat/conversations/conversation.ts";
import { thoughtAsText } from "../../chat/conversations/same-message.ts";
import type { ThinkingMarks } from "../../chat/formats/format.ts";
import type { ParsedReply } from "../../chat/messages.ts";
import type { Chat } from "../../chat/types.ts";

interface ReplyDelta {
  content: string;
  reasoning: string;
}

export interface ReplyStream {
  /** The text that this token made certain. */
  push(token: number): ReplyDelta;
  /** The rest, once the whole reply is parsed. */
  end(reply: ParsedReply): ReplyDelta;
}

const noMarks: ThinkingMarks = { open: "", close: "" };

interface ReplyStreamOptions {
  /** The call's options. Without them the reply is plain text. */
  options?: CallOptions;
  /** Strings that end the reply and that the client does not get. */
  stops?: readonly string[] | undefined;
}

/**
 * Holds back white space, the beginning of a mark or stop string and, where tools are offered, everything from the first
 * sign of a call, until it is clear what they are. Each character is examined once. Where an answer has a header of its own
 * (harmony), other text than thinking and the answer is known only at the end.
 */
export function replyStream(chat: Chat, { options, stops = [] }: ReplyStreamOptions): ReplyStream {
  const decoder = chat.incrementalDecoder(options ? {} : { skipSpecial: true });
  const thinking = options ? chat.thinkingOf(options) : "never";
  const { thinking: marks = noMarks, answer, calls, split } = options ? chat.format : {};
  const offered = (options?.tools?.length ?? 0) > 0;
  const contentMarks = [...stops, ...(offered ? (calls?.starts ?? []) : []), ...(split ? [marks.close] : [])];
  const sent: ReplyDelta = { content: "", reasoning: "" };
  /** After "paused", the text is known only from the whole reply. */
  let part: "start" | "reasoning" | "header" | "content" | "paused" = thinking === "never" ? "content" : "start";
  let hasThought = false;
  /** Something other than special tokens was sent, or special tokens were dropped. */
  const hasText = { content: false, reasoning: false };
  /** Text that was not sent so far. */
  let held = "";

  function readStart(): void {
    const text = held.trimStart();
    if (text.startsWith(marks.open)) {
      held = text.slice(marks.open.length);
      part = "reasoning";
    } else if (!marks.open.startsWith(text)) {
      part = thinking === "begun" ? "reasoning" : answer === undefined ? "content" : "header";
    }
  }

  function readHeader(header: string): void {
    const from = held.indexOf(header);
    if (from >= 0 && /^(<\|start\|>assistant)?$/.test(held.slice(0, from).trim())) {
      held = held.slice(from + header.length);
      part = "content";
    } else if (held.length > header.length + 100 || /<\|message\|>/.test(held)) part = "paused";
  }

  function readReasoning(): string {
    const end = held.indexOf(marks.close);
    if (end < 0) return send("reasoning", [marks.close, ...stops]);
    const rest = held.slice(end + marks.close.length);
    held = held.slice(0, end);
    const text = send("reasoning", []);
    held = rest;
    hasThought = true;
    part = answer === undefined ? "content" : "header";
    return text;
  }

  function readContent(): string {
    // If thinking ends without a start, everything before its end is thinking.
    return send("content", hasThought || thinking === "never" || split ? contentMarks : [marks.close, ...contentMarks]);
  }

  function send(key: keyof ReplyDelta, marks: readonly string[]): string {
    const { length, isMark } = certainPart(held, marks);
    if (isMark) part = "paused";
    const text = held.slice(0, length).trimEnd();
    held = held.slice(text.length);
    const isTrimmed = !hasText[key] && (key === "reasoning" || hasThought);
    hasText[key] ||= text !== "";
    const cleaned = chat.withoutSpecials(isTrimmed ? text.trimStart() : text);
    sent[key] += cleaned;
    return cleaned;
  }

  const rest = (key: keyof ReplyDelta, whole: string) =>
    // Text that contradicts what was sent cannot be sent.
    whole.startsWith(sent[key]) ? whole.slice(sent[key].length) : "";

  return {
    push(token) {
      const delta: ReplyDelta = { content: "", reasoning: "" };
      const piece = options && chat.stopIds.includes(token) ? "" : decoder.push(token);
      if (part === "paused" || piece === "") return delta;
      held += piece;
      if (piece.trim() === "") return delta;
      if (part === "start") readStart();
      if (part === "reasoning") delta.reasoning = readReasoning();
      if (part === "header" && answer !== undefined) readHeader(answer);
      if (part === "content") delta.content = readContent();
      return delta;
    },
    end({ content, reasoning = "" }) {
      // Thinking that only ended was sent as text before its end arrived. It stays text, and the answer follows it.
      const shown = sent.content.trimStart();
      if (shown !== "" && sent.reasoning === "" && reasoning.startsWith(shown)) {
        return { reasoning: "", content: thoughtAsText({ reasoning, content }).slice(shown.length) };
      }
      return { reasoning: rest("reasoning", reasoning), content: rest("content", content) };
    },
  };
}

/** How much of the text comes before the first mark, or before an end that may become one. */
function certainPart(text: string, marks: readonly string[]): { length: number; isMark: boolean } {
  let length = text.length;
  let isMark = false;
  for (const mark of marks) {
    const whole = text.indexOf(mark);
    if (whole >= 0 && whole < length) {
      length = whole;
      isMark = true;
    }
  }
  if (isMark) return { length, isMark };
  for (const mark of marks) {
    for (let size = Math.min(mark.length - 1, text.length); size > 0; size--) {
      if (text.endsWith(mark.slice(0, size))) length = Math.min(length, text.length - size);
    }
  }
  return { length, isMark };
}
