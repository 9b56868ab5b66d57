/**
 * Renders the text between a sampled reply and the next one: the end of the turn, the new messages, the header of the next
 * turn. The whole conversation is rendered with marks in place of sampled text, so sampled text is never encoded again.
 */
import { UserError } from "../../errors.ts";
import type { ChatMessage } from "../messages.ts";
import type { Chat, RenderOptions } from "../types.ts";

export interface Bridge {
  /** From the end of the reply's turn to the header of the next turn. */
  text: string;
  /** Whether `text` begins with the end of the reply's turn, which the model may have sampled itself, or with the next turn. */
  hasTurnEnd: boolean;
  /** The template drops thinking that the tokens so far contain. */
  dropsReasoning: boolean;
  /** Indices of messages, including `next`, whose thinking is not in the tokens. */
  hidden: ReadonlySet<number>;
}

const replyMark = "Qz7reply7zQ";
const thinkingMark = (index: number) => `Qz7thinking${index}7zQ`;

/**
 * @param history up to the sampled reply, which is its last message
 * @param hidden indices of the history's messages whose thinking is not in the tokens so far
 * @param next the messages after the reply; may be empty
 * @returns null if the template does not render the reply, so that the conversation cannot be continued from it
 * @throws UserError if the template refuses the messages
 */
export function bridge(
  chat: Pick<Chat, "renderText" | "turnEnds">,
  history: readonly ChatMessage[],
  hidden: ReadonlySet<number>,
  next: readonly ChatMessage[],
  options: RenderOptions,
): Bridge | null {
  const marked = history.map(markThinking);
  const text = renderMarked(chat, marked, next, options);
  if (text === null) return null;
  const after = text.lastIndexOf(replyMark) + replyMark.length;
  const dropsReasoning = hiddenIn(text, history).some((index) => !hidden.has(index));
  const hiddenNext = next.flatMap(({ reasoning }, index) =>
    reasoning && !text.includes(reasoning.trim(), after) ? [history.length + index] : [],
  );
  const found = { dropsReasoning, hidden: new Set([...hidden, ...hiddenNext]) };
  if (chat.turnEnds.length === 0) return { text: text.slice(after), hasTurnEnd: false, ...found };
  const ends = chat.turnEnds.map((end) => text.indexOf(end, after)).filter((end) => end >= 0);
  return ends.length === 0 ? null : { text: text.slice(Math.min(...ends)), hasTurnEnd: true, ...found };
}

/**
 * The mark is in the arguments of the reply's calls, which most templates write last, else in its content.
 *
 * @returns null if the template does not render the reply
 * @throws UserError if the template refuses the messages
 */
function renderMarked(
  chat: Pick<Chat, "renderText">,
  history: readonly ChatMessage[],
  next: readonly ChatMessage[],
  options: RenderOptions,
): string | null {
  const render = (mark: (message: ChatMessage) => ChatMessage) =>
    renderReplies(chat, history.with(-1, mark(history.at(-1)!)), next, options);
  if (history.at(-1)?.toolCalls?.length) {
    try {
      const text = render(markCalls);
      if (text.includes(replyMark)) return text;
    } catch (error) {
      if (!(error instanceof UserError)) throw error;
    }
  }
  const text = render(markReply);
  return text.includes(replyMark) ? text : null;
}

/** Some templates refuse replies with several tool calls. They get the first one only. */
function renderReplies(
  chat: Pick<Chat, "renderText">,
  history: readonly ChatMessage[],
  next: readonly ChatMessage[],
  options: RenderOptions,
): string {
  try {
    return chat.renderText([...history, ...next], options);
  } catch (error) {
    if (history.every(({ toolCalls = [] }) => toolCalls.length < 2)) throw error;
    const single = history.map(({ toolCalls = [], ...message }) =>
      toolCalls.length === 0 ? message : { ...message, toolCalls: toolCalls.slice(0, 1) },
    );
    return chat.renderText([...single, ...next], options);
  }
}

/** Indices of the messages whose thinking the template drops. */
export function hiddenThinking(
  chat: Pick<Chat, "renderText">,
  messages: readonly ChatMessage[],
  options: RenderOptions,
): Set<number> {
  if (messages.every(({ reasoning }) => !reasoning)) return new Set();
  return new Set(hiddenIn(chat.renderText(messages.map(markThinking), options), messages));
}

/** @param text a rendering of the messages with marks for their thinking */
const hiddenIn = (text: string, messages: readonly ChatMessage[]) =>
  messages.flatMap(({ reasoning }, index) => (reasoning && !text.includes(thinkingMark(index)) ? [index] : []));

const markThinking = (message: ChatMessage, index: number): ChatMessage =>
  message.reasoning ? { ...message, reasoning: thinkingMark(index) } : message;

/** Without content, since some templates write it after the results of the calls. */
const markCalls = (message: ChatMessage): ChatMessage => ({
  ...message,
  content: "",
  toolCalls: message.toolCalls?.map((call) => ({ ...call, arguments: { [replyMark]: "" } })),
});

const markReply = (message: ChatMessage): ChatMessage => ({ ...markCalls(message), content: replyMark });

/** A reply's text as its client gets it: without the stop string and everything after it. */
export function cutAtStop(text: string, stops: readonly string[] = []): string {
  let end = text.length;
  for (const stop of stops) {
    const at = stop === "" ? -1 : text.indexOf(stop);
    if (at >= 0) end = Math.min(end, at);
  }
  return text.slice(0, end);
}
