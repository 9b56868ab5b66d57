import { type Grade, grade, overlong, quote } from "../grade.ts";
import { numbersIn } from "./numbers.ts";

/**
 * The share of positions at which a reply's numbers equal the expected ones. Further numbers are ignored. `correct` if all
 * are equal.
 *
 * @example integersInOrder("12, 40, 31", [12, 31, 40]).reward // 1/3
 * @throws Error if `expected` is empty or contains a value that is not an integer
 */
export function integersInOrder(reply: string, expected: readonly number[]): Grade {
  if (expected.length === 0 || !expected.every(Number.isSafeInteger)) {
    throw new Error(`integersInOrder expects a list of integers to compare with, got [${expected.join(", ")}]`);
  }
  const refused = overlong(reply);
  if (refused) return refused;
  const found = numbersIn(reply, { thousands: false }).slice(0, expected.length);
  if (found.length === 0) return grade(false, `no number in ${quote(reply)}`);
  const right = expected.filter((value, position) => found[position] === String(value)).length;
  const explanation = `${right} of ${expected.length} in place: ${found.join(", ")}, expected ${expected.join(", ")}`;
  return grade(right === expected.length, explanation, right / expected.length);
}
