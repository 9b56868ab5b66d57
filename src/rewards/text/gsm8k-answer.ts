import { type Grade, grade, overlong, quote } from "../grade.ts";
import { numbersIn } from "./numbers.ts";

/**
 * 1 if a reply's final number equals the reference's, else 0. The final number is the first one after the last `####`,
 * else the last one inside the last `\boxed{}`, else the last one of the text. Numbers are compared as text, ignoring
 * thousands commas, currency signs and trailing zeros.
 *
 * @param reference GSM8K's `answer` column, or just the number
 * @throws Error if the reference does not contain a number
 */
export function gsm8kAnswer(reply: string, reference: string): Grade {
  const refused = overlong(reply);
  if (refused) return refused;
  const expected = finalNumber(reference);
  if (expected === undefined) throw new Error(`the reference answer does not contain a number: ${quote(reference)}`);
  const found = finalNumber(reply);
  if (found === undefined) return grade(false, `no final number in ${quote(reply)}, expected ${expected.number}`);
  return grade(found.number === expected.number, `${found.number} ${found.where}, expected ${expected.number}`);
}

function finalNumber(text: string): { number: string; where: string } | undefined {
  const marked = text.includes("####") ? text.slice(text.lastIndexOf("####") + 4) : undefined;
  const boxed = text.includes("\\boxed{") ? boxContent(text.slice(text.lastIndexOf("\\boxed{") + 7)) : undefined;
  const candidates = [
    { number: marked && numbersIn(marked, { thousands: true })[0], where: "after ####" },
    { number: boxed && numbersIn(boxed, { thousands: true }).at(-1), where: "in \\boxed{}" },
    { number: numbersIn(text, { thousands: true }).at(-1), where: "as the last number" },
  ];
  for (const { number, where } of candidates) if (number !== undefined && number !== "") return { number, where };
  return undefined;
}

/** The text up to the brace that closes the box, if any. LaTeX's "1{,}234" becomes 1,234. */
function boxContent(text: string): string {
  let depth = 1;
  for (let index = 0; index < text.length; index++) {
    if (text[index] === "{") depth++;
    else if (text[index] === "}" && --depth === 0) return text.slice(0, index).replaceAll("{,}", ",");
  }
  return text.replaceAll("{,}", ",");
}
