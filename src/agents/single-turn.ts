/** The simplest workflow: one prompt, one reply, one reward. */
import { type PromptOptions, promptMessages } from "./prompt.ts";
import type { CallParams, Reward, Workflow } from "./types.ts";

export interface SingleTurnOptions<Row> extends PromptOptions<Row> {
  /** Grades the reply: a finite number, or an `Outcome` that also says why. */
  reward: Reward<Row>;
  params?: CallParams;
}

/**
 * A workflow of one prompt and one reply, which `reward` grades.
 *
 * @example
 * singleTurn<{ question: string; answer: number }>({
 *   prompt: (row) => row.question,
 *   reward: (row, reply) => firstInteger(reply.text, row.answer),
 * })
 */
export function singleTurn<Row>({ prompt, reward, system, params }: SingleTurnOptions<Row>): Workflow<Row> {
  return async (task, { model, stage, signal }) => {
    stage("prompt");
    const messages = await promptMessages(prompt, task.row, system);
    const reply = await model.chat(messages, params);
    stage("reward");
    return reward(task.row, reply, { task, messages, signal });
  };
}
