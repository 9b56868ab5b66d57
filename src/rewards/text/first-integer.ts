import { type Grade, grade, overlong, quote } from "../grade.ts";
import { numbersIn } from "./numbers.ts";

/**
 * 1 if the first number of a reply is the expected integer, else 0. "1,234" is read as 1234.
 *
 * @example firstInteger("31 is larger than 12.", 31).reward // 1
 * @throws Error if `expected` is not a safe integer
 */
export function firstInteger(reply: string, expected: number): Grade {
  if (!Number.isSafeInteger(expected))
    throw new Error(`firstInteger expects an integer to compare with, got ${expected}`);
  const refused = overlong(reply);
  if (refused) return refused;
  const [found] = numbersIn(reply, { thousands: true });
  if (found === undefined) return grade(false, `no number in ${quote(reply)}`);
  return grade(found === String(expected), `the first number is ${found}, expected ${expected}`);
}
