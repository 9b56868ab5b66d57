/** What every grader here returns. */
import type { Outcome } from "../agents/types.ts";

/** An outcome whose `correct` is known; the reward is `correct` as 1 or 0 unless another is given. */
export type Grade = Outcome & { reward: number; correct: boolean; explanation: string };

/** Every grader's time is linear in a reply of up to this many characters; a longer reply gets 0 unread. */
const longestReply = 1_000_000;

const longestExplanation = 2000;

export function grade(correct: boolean, explanation: string, reward = correct ? 1 : 0): Grade {
  return { reward, correct, explanation: shorten(explanation, longestExplanation) };
}

/** The grade of a reply that is too long to be read; undefined for all others. */
export function overlong(reply: string): Grade | undefined {
  if (reply.length <= longestReply) return undefined;
  return grade(false, `the reply has ${reply.length} characters, more than the ${longestReply} that are read`);
}

/** A reply within an explanation: quoted, and shortened in the middle where it is long. */
export const quote = (text: string): string => JSON.stringify(shorten(text, 110));

function shorten(text: string, longest: number): string {
  if (text.length <= longest + 10) return text;
  return `${text.slice(0, longest / 2 + 5)} ... ${text.slice(5 - longest / 2)}`;
}
