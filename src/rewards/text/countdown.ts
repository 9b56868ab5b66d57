import { type Grade, grade, overlong, quote } from "../grade.ts";
import { withBudget } from "../math/budget.ts";
import { findAnswer } from "../math/find-answer.ts";
import { parseExpression } from "../math/parse.ts";
import { decimalOf, equal } from "../math/rational.ts";
import { canonical } from "./numbers.ts";

/**
 * The number game: 1 if the reply's expression uses each of the numbers exactly once, only + - * / and brackets, and
 * equals the target; else 0. The expression is found as in `mathAnswer`; "= target" after it is ignored.
 *
 * @example countdown("<answer>(8 - 5) * 4</answer>", { numbers: [4, 5, 8], target: 12 }).reward // 1
 */
export function countdown(reply: string, { numbers, target }: { numbers: readonly number[]; target: number }): Grade {
  const refused = overlong(reply);
  if (refused) return refused;
  const found = findAnswer(reply);
  if (found === undefined) return grade(false, `no expression in ${quote(reply)}`);
  const written = found.answer.replace(/=[\s\S]*/, "").trim();
  const plain = written
    .replace(/\\times|\\cdot|[×·]/g, "*")
    .replace(/\\div|÷/g, "/")
    .replaceAll("−", "-");
  if (!/^[\d\s+\-*/().]+$/.test(plain) || /\*\*|\d\s+\d|\)\s*[\d(]|\d\s*\(/.test(plain)) {
    return grade(false, `${quote(written)} is more than + - * / and brackets`);
  }
  const used = (plain.match(/\d+(?:\.\d+)?|\.\d+/g) ?? []).map(canonical).sort();
  const given = numbers.map(String).sort();
  if (used.join() !== given.join()) {
    return grade(false, `${quote(written)} uses ${used.join(", ") || "no numbers"}, not ${given.join(", ")}`);
  }
  const value = withBudget(100_000, () => parseExpression(plain)?.evaluate(new Map()));
  if (value === undefined) return grade(false, `${quote(written)} cannot be read`);
  return grade(equal(value, decimalOf(target)), `${written} is ${value.approximate}, wanted ${target}`);
}
