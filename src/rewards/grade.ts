/** What every grader here answers with. */
import type { Outcome } from "../agents/types.ts";

/** An outcome whose `correct` is known and whose reward is `correct` as 1 or 0 unless another is given. */
export type Grade = Outcome & { reward: number; correct: boolean; explanation: string };

export function grade(correct: boolean, explanation: string, reward = correct ? 1 : 0): Grade {
  return { reward, correct, explanation };
}

/** A reply within an explanation: quoted, and shortened in the middle where it is long. */
export function quote(text: string): string {
  return JSON.stringify(text.length > 120 ? `${text.slice(0, 60)} ... ${text.slice(-50)}` : text);
}
