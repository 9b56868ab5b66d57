/** What a prompt or an observation shows, as messages; a row as the messages that open a conversation. */
import type { ChatMessage, Content } from "../chat/messages.ts";
import { UserError } from "../errors.ts";

/** Text or parts become a user's message; messages stay what they are. */
export type Shown = Content | readonly ChatMessage[];

/** @returns what users returned, whose messages may still be anything */
export function toMessages(shown: unknown): readonly unknown[] {
  return Array.isArray(shown) && !shown.some(isPart) ? shown : [{ role: "user", content: shown }];
}

/** Whether it can be rendered: text, or a list of parts. The parts themselves are checked with their images. */
export const isContent = (content: unknown): content is Content =>
  typeof content === "string" || (Array.isArray(content) && content.length > 0 && content.every(isPart));

const isPart = (part: unknown) => typeof part === "object" && part !== null && "type" in part;

/** How a row becomes the first messages. */
export interface PromptOptions<Row> {
  /** The row as one user message (text, or parts with images), or as a whole conversation. */
  prompt: (row: Row) => Shown | Promise<Shown>;
  /** Put before every prompt. */
  system?: string;
}

/** Checked because a misspelt column of an untyped row would otherwise train on the word "undefined". */
export async function promptMessages<Row>(
  prompt: PromptOptions<Row>["prompt"],
  row: Row,
  system?: string,
): Promise<readonly ChatMessage[]> {
  const given: unknown = await prompt(row);
  const messages = toMessages(given);
  if (messages.length === 0) throw new UserError("prompt(row) returned no messages");
  for (const message of messages) {
    const content = (message as Partial<ChatMessage> | null)?.content;
    if (!isContent(content)) throw new UserError(`prompt(row) returned ${String(content)} instead of a message's text`);
  }
  if (messages.every((message) => (message as ChatMessage).content === ""))
    throw new UserError("prompt(row) returned an empty text");
  if (system === undefined) return messages as ChatMessage[];
  if (messages.some((message) => (message as ChatMessage).role === "system")) {
    throw new UserError("prompt(row) returned a system message, but the workflow has a `system` already");
  }
  return [{ role: "system", content: system }, ...(messages as ChatMessage[])];
}
