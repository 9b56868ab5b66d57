/** What a prompt or an observation shows, as messages. */
import type { ChatMessage, Content } from "../chat/messages.ts";

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
