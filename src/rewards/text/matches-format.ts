import { type Grade, grade, quote } from "../grade.ts";
import { gradeOffThread, gradeOrZero } from "../grade-off-thread.ts";

/**
 * 1 if the pattern occurs in a reply, else 0; anchor it with ^ and $ to match the whole reply. The pattern runs in a
 * thread for at most 5 s, since some patterns take exponential time on some replies.
 *
 * @example (await matchesFormat("<answer>12</answer>", /^<answer>\d+<\/answer>$/)).reward // 1
 */
export const matchesFormat = (reply: string, pattern: RegExp): Promise<Grade> =>
  onAnotherThread(reply, pattern, `${pattern}`);

const onAnotherThread = gradeOffThread<RegExp>(import.meta.url, "matchesFormatOnThisThread");

export function matchesFormatOnThisThread(reply: string, pattern: RegExp): Grade {
  return gradeOrZero(() => {
    // `search` starts at the beginning, regardless of the `lastIndex` of a global pattern.
    const correct = reply.search(pattern) >= 0;
    return grade(correct, `${quote(reply)} ${correct ? "matches" : "does not match"} ${pattern}`);
  }, `${pattern}`);
}
