/** Finds the final answer in a reply. */
import { type Grade, grade, overlong, quote } from "../grade.ts";
import { compareAnswers } from "./equivalent.ts";

export interface FoundAnswer {
  answer: string;
  where: string;
}

/** The text after the last `</think>`; empty if thinking is not closed. */
export function withoutThinking(reply: string): string {
  const end = reply.lastIndexOf("</think>");
  if (end >= 0) return reply.slice(end + "</think>".length);
  return reply.includes("<think>") ? "" : reply;
}

/** The content of the last `\boxed{...}` or `\fbox{...}`; undefined if there is none or it is not closed. */
export function lastBox(text: string): string | undefined {
  const at = Math.max(text.lastIndexOf("\\boxed"), text.lastIndexOf("\\fbox"));
  if (at < 0) return undefined;
  const rest = text.slice(at).replace(/^\\[a-z]+\s*/, "");
  if (!rest.startsWith("{")) return /^[\w.+-]+/.exec(rest)?.[0];
  let depth = 0;
  for (let index = 0; index < rest.length; index++) {
    if (rest[index] === "{") depth++;
    else if (rest[index] === "}" && --depth === 0) return rest.slice(1, index);
  }
  return undefined;
}

/**
 * The first of these that the reply has: the last box, an <answer> tag, text after ####, text after "answer is", the last
 * formula between dollar signs, the last number.
 */
export function findAnswer(reply: string): FoundAnswer | undefined {
  const text = withoutThinking(reply);
  const box = lastBox(text);
  if (box !== undefined) return { answer: box, where: "in \\boxed{}" };
  if (/\\(?:boxed|fbox)/.test(text)) return undefined;
  const tagged = lastTagged(text)?.trim();
  if (tagged) return { answer: tagged, where: "in <answer>" };
  const places: [RegExp, string][] = [
    [/####[ \t]*([^\n]+)/g, "after ####"],
    [/\banswer(?: is|:)[: ]*\s*([^\n]+?)(?=\.(?:\s|$)|\n|$)/gi, 'after "answer is"'],
    [/\$\$?([^$]+)\$\$?/g, "as the last formula"],
    [/((?<![\w.)])[-−]?\$?\d[\d,]*(?:\.\d+)?(?:\/\d+)?%?)/g, "as the last number"],
  ];
  for (const [pattern, where] of places) {
    const answer = [...text.matchAll(pattern)].at(-1)?.[1]?.trim();
    if (answer) return { answer, where };
  }
  return undefined;
}

/** The content of the last `<answer>...</answer>`. A pattern over both tags would take quadratic time. */
function lastTagged(text: string): string | undefined {
  let start: number | undefined;
  let content: string | undefined;
  for (const { 0: tag, index } of text.matchAll(/<\/?answer>/gi)) {
    if (tag[1] !== "/") start ??= index + tag.length;
    else if (start !== undefined) {
      content = text.slice(start, index);
      start = undefined;
    }
  }
  return content;
}

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
