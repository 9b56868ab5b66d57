/** The result of graders. */
import type { Outcome } from "../agents/types.ts";

/** An outcome with a known reward and `correct`. */
export type Grade = Outcome & { reward: number; correct: boolean; explanation: string };

/** In characters. Graders take linear time; longer replies get 0 without being graded. */
const longestReply = 1_000_000;

const longestExplanation = 2000;

/** The default reward is 1 if correct, else 0. */
export function grade(correct: boolean, explanation: string, reward = correct ? 1 : 0): Grade {
  return { reward, correct, explanation: shorten(explanation, longestExplanation) };
}

/** The grade of a reply that is too long; undefined for all others. */
export function overlong(reply: string): Grade | undefined {
  if (reply.length <= longestReply) return undefined;
  return grade(false, `the reply has ${reply.length} characters, but at most ${longestReply} are graded`);
}

/** A reply for an explanation: quoted, and shortened in the middle if it is long. */
export const quote = (text: string): string => JSON.stringify(shorten(text, 110));

function shorten(text: string, longest: number): string {
  if (text.length <= longest + 10) return text;
  return `${text.slice(0, longest / 2 + 5)} ... ${text.slice(5 - longest / 2)}`;
}
