/** The plain agent: its history is all observations and replies, in order. */
import type { ChatMessage } from "../chat/messages.ts";
import { BadOutcome } from "./control-flow.ts";
import { isContent, toMessages } from "./prompt.ts";
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
    observe: (observation) => void messages.push(...checkObservation(observation)),
    act(reply) {
      messages.push(reply.message);
      return reply;
    },
  };
}

/** @throws BadOutcome when there is nothing to see: a model must not be asked about the word "undefined" */
function checkObservation(observation: Observation): readonly ChatMessage[] {
  if (typeof observation !== "string" && !Array.isArray(observation))
    throw new BadOutcome(`gave the observation ${String(observation)}; it must be a text or a list of messages`);
  const messages = toMessages(observation) as readonly ChatMessage[];
  for (const message of messages) {
    if (!isContent(message?.content))
      throw new BadOutcome(`gave an observation with a message without text: ${JSON.stringify(message)}`);
  }
  if (messages.length === 0 || messages.every(({ content }) => content === ""))
    throw new BadOutcome("gave an empty observation");
  return messages;
}
