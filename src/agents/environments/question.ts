/** One question, one answer. */

import type { Task } from "../../data/task.ts";
import { type PromptOptions, promptMessages } from "../prompt.ts";
import type { Environment, Outcome, Reply, Reward } from "../types.ts";

export interface QuestionOptions<Row> extends Pick<PromptOptions<Row>, "prompt"> {
  reward: Reward<Row>;
  /** How many answers the model may give. Default 1. */
  attempts?: number;
  /**
   * What the model sees after a wrong answer. Default: only that it is wrong, because the explanations of graders contain the
   * expected answer, which the next attempt could copy.
   */
  feedback?: (outcome: Outcome) => string;
}

/** Done at the first right answer (`correct`, or a reward of 1), or after the last attempt; the last one counts. */
export function questionEnvironment<Row>(
  task: Task<Row>,
  { prompt, reward, attempts = 1, feedback = () => "that is not right" }: QuestionOptions<Row>,
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
      const observation = `Not yet: ${feedback(outcome)}. Try again.`;
      return { observation, reward: outcome.reward, done: right || answers >= attempts };
    },
    score: () => outcome,
  };
}
