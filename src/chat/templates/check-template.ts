/** Tests on a few short conversations whether a chat template only ever appends to them. */
import { UserError } from "../../errors.ts";
import { bridge } from "../conversations/bridge.ts";
import type { ChatMessage } from "../messages.ts";
import type { Chat, RenderOptions } from "../types.ts";

/** How a template changes earlier turns when a conversation continues. */
export interface TemplateCheck {
  /** It drops the thinking of earlier replies. */
  dropsReasoning: boolean;
  /** It renders earlier turns differently after later ones. Hone keeps the original tokens. */
  rewrites: boolean;
  /** It does not mark the end of a reply, so each turn is rendered completely and starts a new sequence. */
  notContinuable: boolean;
  /** The template's error if it refuses a second question. */
  refuses?: string;
}

const asked: ChatMessage = { role: "user", content: "one?" };
const tools = [{ name: "try", description: "a tool" }];
const next: ChatMessage = { role: "user", content: "two?" };

export function checkTemplate(chat: Chat): TemplateCheck {
  const answer: ChatMessage = { role: "assistant", content: "answer" };
  const thinks = chat.format.thinking !== undefined;
  try {
    const found = bridge(chat, [asked, thinks ? { ...answer, reasoning: "thought" } : answer], new Set(), [next], {});
    return {
      dropsReasoning: found?.dropsReasoning ?? false,
      rewrites: rewrites(chat, answer, {}) || (takesTools(chat) && rewrites(chat, answer, { tools })),
      notContinuable: found === null,
    };
  } catch (error) {
    if (!(error instanceof UserError)) throw error;
    return { dropsReasoning: false, rewrites: false, notContinuable: false, refuses: error.message };
  }
}

function rewrites(chat: Chat, answer: ChatMessage, options: RenderOptions): boolean {
  const begun = chat.renderText([asked], options).trimEnd();
  // The thinking that a generation prompt opens, or closes at once, may be dropped later.
  const { open = "", close = "" } = chat.format.thinking ?? {};
  const closed = begun.endsWith(close) ? begun.slice(0, begun.length - close.length).trimEnd() : begun;
  const header = (closed.endsWith(open) ? closed.slice(0, closed.length - open.length) : begun).trimEnd();
  return !chat.renderText([asked, answer, next], options).startsWith(header);
}

function takesTools(chat: Chat): boolean {
  try {
    return chat.renderText([asked], { tools }) !== "";
  } catch {
    return false;
  }
}

/** The findings as sentences. */
export function describeTemplate(found: TemplateCheck, chat: Chat): string[] {
  const { dropsReasoning, rewrites, notContinuable, refuses } = found;
  const lines: string[] = [];
  if (refuses !== undefined) lines.push(`conversations of several turns are not possible: ${refuses}`);
  if (dropsReasoning && !chat.accumulateReasoning) {
    lines.push(
      "the chat template drops earlier thinking, so each further turn of a conversation starts a new sequence; rllm.accumulate_reasoning=true keeps it in one",
    );
  }
  if (rewrites) {
    lines.push("the chat template renders earlier turns differently after later ones; Hone keeps the sampled tokens");
  }
  if (notContinuable) {
    lines.push(
      "the chat template does not mark the end of a reply, so each turn of a conversation starts a new sequence",
    );
  }
  return lines;
}
