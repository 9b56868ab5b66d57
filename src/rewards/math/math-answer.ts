import { type Grade, grade, overlong, quote } from "../grade.ts";
import { compareAnswers } from "./equivalent.ts";
import { findAnswer, lastBox, withoutThinking } from "./find-answer.ts";

export interface MathAnswerOptions {
  /** Only an answer in `\boxed{}` counts. Default false: see `findAnswer` for where else it is looked for. */
  boxed?: boolean;
}

/**
 * 1 when a reply's final answer is mathematically equal to one of the expected ones, else 0. What a reply thinks
 * between `<think>` and `</think>` does not count.
 *
 * @param expected the answer, bare or with its solution around it (its last `\boxed{}` counts then); several: any of them
 * @throws Error when nothing is expected
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
