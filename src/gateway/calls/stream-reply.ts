/** A reply while it is being sampled: the text of its content and thinking that can no longer change. */
import type { CallOptions } from "../../chat/conversations/conversation.ts";
import type { ParsedReply } from "../../chat/messages.ts";
import { thinkEnd, thinkStart } from "../../chat/parse-reply.ts";
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

interface ReplyStreamOptions {
  /** The call's options. Without them the reply is plain text. */
  options?: CallOptions;
  /** Strings that end the reply and that the client does not get. */
  stops?: readonly string[] | undefined;
}

/** The first characters of tool calls in every format. */
const callStarts = ["<", "[", "{"];

/**
 * Holds back white space, the beginning of a mark or stop string and, where tools are offered, everything from the first
 * sign of a call, until it is clear what they are. Each character is examined once.
 */
export function replyStream(chat: Chat, { options, stops = [] }: ReplyStreamOptions): ReplyStream {
  const decoder = chat.incrementalDecoder(options ? {} : { skipSpecial: true });
  const thinking = options ? chat.thinkingOf(options) : "never";
  const contentMarks = (options?.tools?.length ?? 0) > 0 ? [...stops, ...callStarts] : stops;
  const sent: ReplyDelta = { content: "", reasoning: "" };
  /** After "paused", the text is known only from the whole reply. */
  let part: "start" | "reasoning" | "content" | "paused" = thinking === "never" ? "content" : "start";
  let hasThought = false;
  /** Something other than special tokens was sent, or special tokens were dropped. */
  const hasText = { content: false, reasoning: false };
  /** Text that was not sent so far. */
  let held = "";

  function readStart(): void {
    const text = held.trimStart();
    if (text.startsWith(thinkStart)) {
      held = text.slice(thinkStart.length);
      part = "reasoning";
    } else if (!thinkStart.startsWith(text)) {
      part = thinking === "begun" ? "reasoning" : "content";
    }
  }

  function readReasoning(): string {
    const end = held.indexOf(thinkEnd);
    if (end < 0) return send("reasoning", [thinkEnd, ...stops]);
    const rest = held.slice(end + thinkEnd.length);
    held = held.slice(0, end);
    const text = send("reasoning", []);
    held = rest;
    hasThought = true;
    part = "content";
    return text;
  }

  function readContent(): string {
    // If thinking ends without a start, everything before its end is thinking.
    return send("content", hasThought || thinking === "never" ? contentMarks : [thinkEnd, ...contentMarks]);
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
      if (part === "content") delta.content = readContent();
      return delta;
    },
    end({ content, reasoning = "" }) {
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
