/** Whether conversations written by a chat template only ever grow, tried on a few short ones. */
import { UserError } from "../errors.ts";
import { bridge } from "./bridge.ts";
import type { ChatMessage } from "./messages.ts";
import type { Chat, RenderOptions } from "./types.ts";

/** What a template does to earlier turns as a conversation goes on; nothing of it where it keeps them as they were. */
export interface TemplateCheck {
  /** It leaves the thinking of earlier replies out. */
  dropsReasoning: boolean;
  /** It writes earlier turns differently once others follow. Hone goes on with the tokens as they were. */
  rewrites: boolean;
  /** It does not show where a reply ends, so each turn is rendered whole and begins a sequence of its own. */
  notContinuable: boolean;
  /** It takes no second question, in its own words. */
  refuses?: string;
}

const asked: ChatMessage = { role: "user", content: "one?" };
const tools = [{ name: "try", description: "a tool" }];
const next: ChatMessage = { role: "user", content: "two?" };

export function checkTemplate(chat: Chat): TemplateCheck {
  const answer: ChatMessage = { role: "assistant", content: "answer" };
  const thinks = chat.parse("<think>a</think>b").reasoning !== undefined;
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
  // The thinking that a prompt opens, or closes at once, is for the model to answer after; it may go later.
  const header = begun.replace(/<think>(\s*<\/think>)?$/, "").trimEnd();
  return !chat.renderText([asked, answer, next], options).startsWith(header);
}

function takesTools(chat: Chat): boolean {
  try {
    return chat.renderText([asked], { tools }) !== "";
  } catch {
    return false;
  }
}

/** The findings as sentences, each with what to do about it. */
export function describeTemplate(found: TemplateCheck, chat: Chat): string[] {
  const { dropsReasoning, rewrites, notContinuable, refuses } = found;
  return [
    ...(refuses === undefined ? [] : [`conversations of several turns are not possible: ${refuses}`]),
    ...(dropsReasoning && !chat.accumulateReasoning
      ? [
          "the chat template leaves earlier thinking out, so each further turn of a conversation is a sequence of its own; rllm.accumulate_reasoning=true keeps it in one",
        ]
      : []),
    ...(rewrites
      ? [
          "the chat template writes earlier turns differently once others follow; Hone goes on with the tokens as they were sampled",
        ]
      : []),
    ...(notContinuable
      ? ["the chat template does not show where a reply ends, so each turn of a conversation is a sequence of its own"]
      : []),
  ];
}
