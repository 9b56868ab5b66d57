import { offThread, TookTooLong } from "../concurrency/off-thread.ts";
import { type Grade, grade, overlong } from "./grade.ts";

const timeoutSeconds = 5;

/**
 * A grader whose time depends on the experiment's pattern or schema. It runs in a worker thread, and a reply on which it
 * takes too long gets 0. In the main thread it could block the whole run.
 *
 * @param name the module's export that grades
 */
export function gradeOffThread<Rule>(
  module: string,
  name: string,
): (reply: string, rule: Rule, what: string) => Promise<Grade> {
  const onAnotherThread = offThread<[string, Rule], Grade>(new URL(module), name, { timeoutSeconds });
  return async (reply, rule, what) => {
    const refused = overlong(reply);
    if (refused) return refused;
    try {
      return await onAnotherThread([reply, rule]);
    } catch (error) {
      if (error instanceof TookTooLong)
        return grade(false, `${what} took longer than ${timeoutSeconds} s on this reply`);
      throw error;
    }
  };
}

/** Grades with 0 and the reason if the check throws, e.g. a stack overflow in a pattern. */
export function gradeOrZero(check: () => Grade, what: string): Grade {
  try {
    return check();
  } catch (error) {
    return grade(false, `${what} failed on this reply: ${error instanceof Error ? error.message : error}`);
  }
}
