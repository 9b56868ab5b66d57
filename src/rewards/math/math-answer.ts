import { type Grade, grade, overlong, quote } from "../grade.ts";
import { compareAnswers } from "./equivalent.ts";
import { findAnswer, lastBox, withoutThinking } from "./find-answer.ts";

export interface MathAnswerOptions {
  /** Accept only an answer in `\boxed{}`. Default false, which also accepts the other forms of `findAnswer`. */
  boxed?: boolean;
}

/**
 * 1 if a reply's final answer is mathematically equal to one of the expected answers, else 0. Text between `<think>` and
 * `</think>` is ignored.
 *
 * @param expected one or several answers; of a whole solution, the last `\boxed{}` is the answer
 * @throws Error if there is no expected answer
 * @example mathAnswer("So it is \\boxed{\\frac{1}{2}}.", "0.5").reward // 1
 */
export function mathAnswer(
  reply: string,
  expected: string | number | readonly (string | number)[],
  { boxed = false }: MathAnswerOptions = {},
): Grade {
  const references = [expected].flat().map((reference) => lastBox(String(reference)) ?? String(reference));
  if (references.length === 0 || references.some((reference) => reference.trim() === "")) {
    throw new Error("mathAnswer expects an answer to compare with, got none");
  }
  const refused = overlong(reply);
  if (refused) return refused;
  const box = lastBox(withoutThinking(reply));
  const found = boxed ? box !== undefined && { answer: box, where: "in \\boxed{}" } : findAnswer(reply);
  const wanted = references.map(quote).join(" or ");
  if (!found) return grade(false, `no ${boxed ? "\\boxed{} " : ""}answer in ${quote(reply)}, expected ${wanted}`);
  const verdicts = references.map((reference) => compareAnswers(found.answer, reference));
  const correct = verdicts.includes(true);
  const verdict = correct
    ? "equals"
    : verdicts.includes(undefined)
      ? "takes too long to compare with"
      : "does not equal";
  return grade(correct, `${quote(found.answer)} ${found.where} ${verdict} ${wanted}`);
}
