import { type Grade, grade, overlong, quote } from "../grade.ts";

export interface ExactMatchOptions {
  /** Ignore the case of letters. Default false. */
  ignoreCase?: boolean;
}

/**
 * 1 if a reply is the expected text, ignoring white space at both ends, else 0.
 *
 * @example exactMatch(" Paris\n", "Paris").reward // 1
 */
export function exactMatch(reply: string, expected: string, { ignoreCase = false }: ExactMatchOptions = {}): Grade {
  const refused = overlong(reply);
  if (refused) return refused;
  const fold = (text: string) => (ignoreCase ? text.trim().toLowerCase() : text.trim());
  const correct = fold(reply) === fold(expected);
  return grade(correct, correct ? `is ${quote(expected)}` : `${quote(reply)} is not ${quote(expected)}`);
}
