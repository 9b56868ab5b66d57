/** The plain agent: its history is all observations and replies, in order. */
import type { ChatMessage } from "../chat/messages.ts";
import { BadOutcome } from "./control-flow.ts";
import type { Agent, Observation, Reply } from "./types.ts";

export interface ChatAgentOptions {
  /** The system message. */
  system?: string | undefined;
  /** Example turns before the first observation, which show a small model the form of an answer. */
  shown?: readonly ChatMessage[];
}

/** Its actions are the replies themselves. */
export function chatAgent({ system, shown = [] }: ChatAgentOptions = {}): Agent<Reply> {
  const messages: ChatMessage[] = [...shown];
  if (system !== undefined) messages.unshift({ role: "system", content: system });
  return {
    messages,
    observe: (observation) => void messages.push(...toMessages(observation)),
    act(reply) {
      messages.push(reply.message);
      return reply;
    },
  };
}

/** @throws BadOutcome when there is nothing to see: a model must not be asked about the word "undefined" */
function toMessages(observation: Observation): readonly ChatMessage[] {
  const messages = typeof observation === "string" ? [{ role: "user" as const, content: observation }] : observation;
  if (!Array.isArray(messages))
    throw new BadOutcome(`gave the observation ${String(observation)}; it is a text or a list of messages`);
  for (const message of messages) {
    if (typeof message?.content !== "string")
      throw new BadOutcome(`gave an observation with a message without text: ${JSON.stringify(message)}`);
  }
  if (messages.length === 0 || messages.every(({ content }) => content === ""))
    throw new BadOutcome("gave an empty observation");
  return messages;
}
