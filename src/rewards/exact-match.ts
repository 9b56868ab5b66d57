import { type Grade, grade, overlong, quote } from "./grade.ts";

export interface ExactMatchOptions {
  /** Compare letters of either case as equal. Default false. */
  ignoreCase?: boolean;
}

/**
 * 1 when a reply is the expected text, white space at both ends aside, else 0.
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
