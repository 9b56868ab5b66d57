import { type Grade, grade, overlong } from "./grade.ts";
import { offThread, TookTooLong } from "./off-thread.ts";

const timeoutSeconds = 5;

/**
 * A grader whose time depends on a pattern or schema of the experiment: it runs in a thread, and a reply on which it takes
 * too long gets 0. A terminated thread costs one reply its reward, a main thread that hangs costs the run.
 *
 * @param name of the module's export that grades on its own thread
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

/** An error that a check throws on a reply, e.g. a stack overflow in a pattern, becomes a 0 with the reason. */
export function gradeOrZero(check: () => Grade, what: string): Grade {
  try {
    return check();
  } catch (error) {
    return grade(false, `${what} failed on this reply: ${error instanceof Error ? error.message : error}`);
  }
}
