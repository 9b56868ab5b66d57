/** A reply as it is being sampled: what of its content and thinking can be told already without ever taking it back. */

import type { CallOptions } from "../chat/conversation.ts";
import type { ParsedReply } from "../chat/messages.ts";
import type { Chat } from "../chat/types.ts";

interface ReplyDelta {
  content: string;
  reasoning: string;
}

export interface ReplyStream {
  /** Text that this token made certain. */
  push(token: number): ReplyDelta;
  /** What was still held back; tool calls are known now. */
  end(reply: ParsedReply): ReplyDelta;
}

/** How tool calls begin in one or another model's format. */
const callStarts = /[<[{`]|\b(?:functions?|commentary)\b/;
const thinkingMarks = ["<think>", "</think>"];

export interface ReplyStreamOptions {
  /** Those of the call whose reply it is; absent: the reply is text and nothing else. */
  options?: CallOptions;
  /** Strings that end the reply and are not part of what the client is given. */
  stops?: readonly string[] | undefined;
}

/**
 * Held back are the ends that may yet turn out to be something else: white space, the beginning of a mark or of a stop
 * string, and, where tools are offered, everything from the first sign of a call.
 */
export function replyStream(chat: Chat, { options, stops = [] }: ReplyStreamOptions): ReplyStream {
  const decoder = chat.incrementalDecoder(options ? {} : { skipSpecial: true });
  const marks = options ? [...thinkingMarks, ...stops] : stops;
  const offersTools = (options?.tools?.length ?? 0) > 0;
  let text = "";
  const sent = { content: "", reasoning: "" };

  function advance(key: keyof ReplyDelta, known: string): string {
    // A text that does not go on from what was told is told no further; the end has the last word.
    if (known.length <= sent[key].length || !known.startsWith(sent[key])) return "";
    const delta = known.slice(sent[key].length);
    sent[key] = known;
    return delta;
  }

  return {
    push(token) {
      const piece = options && chat.stopIds.includes(token) ? "" : decoder.push(token);
      if (piece === "") return { content: "", reasoning: "" };
      text += piece;
      const { content, reasoning = "" } = options ? chat.parse(text, options) : { content: text };
      const callAt = offersTools ? content.search(callStarts) : -1;
      const certain = callAt < 0 ? content : content.slice(0, callAt);
      return {
        reasoning: advance("reasoning", withoutOpenEnd(reasoning, marks)),
        content: advance("content", withoutOpenEnd(certain, marks)),
      };
    },
    end({ content, reasoning = "" }) {
      return { reasoning: advance("reasoning", reasoning), content: advance("content", content) };
    },
  };
}

/** The text without the white space at its end and without an end that is, or begins, a mark. */
function withoutOpenEnd(text: string, marks: readonly string[]): string {
  let end = text.length;
  for (const mark of marks) {
    const whole = text.indexOf(mark);
    if (whole >= 0) end = Math.min(end, whole);
    for (let length = Math.min(mark.length - 1, text.length); length > 0; length--) {
      if (text.endsWith(mark.slice(0, length))) {
        end = Math.min(end, text.length - length);
        break;
      }
    }
  }
  return text.slice(0, end).trimEnd();
}
