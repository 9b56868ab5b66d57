/** The simplest workflow: one prompt, one reply, one reward. */
import type { ChatMessage } from "../trajectories/types.ts";
import type { Outcome, Reply, Workflow } from "./types.ts";

export interface SingleTurnOptions<Row> {
  /** The row as one user message, or as a whole conversation. */
  prompt: (row: Row) => string | readonly ChatMessage[] | Promise<string | readonly ChatMessage[]>;
  /** What the reply is worth: a finite number, or an `Outcome` that also says why. */
  reward: (row: Row, reply: Reply) => number | Outcome | Promise<number | Outcome>;
  /** Put before every prompt. */
  system?: string;
}

/**
 * @example
 * singleTurn<{ question: string; answer: number }>({
 *   prompt: (row) => row.question,
 *   reward: (row, reply) => firstInteger(reply.text, row.answer),
 * })
 */
export function singleTurn<Row>({ prompt, reward, system }: SingleTurnOptions<Row>): Workflow<Row> {
  return async (task, { model, stage }) => {
    stage("prompt");
    const messages = toMessages(await prompt(task.row), system);
    const reply = await model.chat(messages);
    stage("reward");
    return reward(task.row, reply);
  };
}

/** Checked here because a misspelt column of an untyped row would otherwise train on the word "undefined". */
function toMessages(prompt: unknown, system: string | undefined): readonly ChatMessage[] {
  const messages: unknown[] = Array.isArray(prompt) ? prompt : [{ role: "user", content: prompt }];
  if (messages.length === 0) throw new Error("prompt(row) gave no messages");
  for (const message of messages) {
    const content = (message as Partial<ChatMessage> | null)?.content;
    if (typeof content !== "string")
      throw new Error(`prompt(row) gave ${String(content)} where a message's text was expected`);
  }
  if (messages.every((message) => (message as ChatMessage).content === ""))
    throw new Error("prompt(row) gave an empty text");
  if (system === undefined) return messages as ChatMessage[];
  if (messages.some((message) => (message as ChatMessage).role === "system")) {
    throw new Error("prompt(row) gave a system message although singleTurn has a `system` of its own");
  }
  return [{ role: "system", content: system }, ...(messages as ChatMessage[])];
}
