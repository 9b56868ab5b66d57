import { type Grade, grade, quote } from "./grade.ts";

/**
 * 1 when the pattern occurs in a reply, else 0; anchor it with ^ and $ for the whole reply.
 *
 * @example matchesFormat("<answer>12</answer>", /^<answer>\d+<\/answer>$/).reward // 1
 */
export function matchesFormat(reply: string, pattern: RegExp): Grade {
  // `search` starts at the beginning whatever `lastIndex` a global pattern is left with.
  const correct = reply.search(pattern) >= 0;
  return grade(correct, `${quote(reply)} ${correct ? "matches" : "does not match"} ${pattern}`);
}
