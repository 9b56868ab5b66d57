/** One question, one answer. */

import type { Task } from "../../data/task.ts";
import { type PromptOptions, promptMessages } from "../prompt.ts";
import type { Environment, Outcome, Reply, Reward } from "../types.ts";

export interface QuestionOptions<Row> extends Pick<PromptOptions<Row>, "prompt"> {
  reward: Reward<Row>;
  /** How many answers the model may give; after a wrong one it sees the reason. Default 1. */
  attempts?: number;
}

/** Done at the first right answer (`correct`, or a reward of 1), or after the last attempt; the last one counts. */
export function questionEnvironment<Row>(
  task: Task<Row>,
  { prompt, reward, attempts = 1 }: QuestionOptions<Row>,
): Environment<Reply> {
  let messages: Awaited<ReturnType<typeof promptMessages>> = [];
  let answers = 0;
  let outcome: Outcome = { reward: null };
  return {
    async reset() {
      messages = await promptMessages(prompt, task.row);
      return messages;
    },
    async step(reply, { signal }) {
      answers++;
      const graded = await reward(task.row, reply, { task, messages, signal });
      outcome = typeof graded === "number" ? { reward: graded } : graded;
      const right = outcome.correct ?? (outcome.reward !== null && outcome.reward >= 1);
      const why = outcome.explanation ?? "that is not right";
      return { observation: `Not yet: ${why}. Try again.`, reward: outcome.reward, done: right || answers >= attempts };
    },
    score: () => outcome,
  };
}
