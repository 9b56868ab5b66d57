import { type Grade, grade, overlong, quote } from "../grade.ts";
import { lastBox, withoutThinking } from "../math/find-answer.ts";

/**
 * The most reliable pattern first; the last match of a pattern counts. They expect runs of white space to be collapsed,
 * since adjacent repetitions that both match blanks would backtrack.
 */
const patterns = [
  /<answer>\s?\(?([A-Z])\b[^<]*<\/answer>/gi,
  /\b(?:answer|choice|option)\s?(?:is|:)?\s?:?\s?\**\s?\(?([A-Z])\)?\b(?!')/gi,
  /(?:^|\n) ?\**\(?([A-Z])\)?\**\s?(?:[.):]|$)/g,
  /\(([A-Z])\)/g,
];

/**
 * 1 if a reply chooses the expected letter, else 0. The choice is read from `\boxed{B}`, else `<answer>B</answer>`,
 * else "the answer is B", else a line that begins with a letter as in a list, else a letter in parentheses.
 *
 * @param expected one letter of the choices
 * @param choices number of choices; later letters are ignored. Default 26
 * @throws Error if `expected` is not one of the choices
 * @example multipleChoice("It flows north, so the answer is (B).", "B").reward // 1
 */
export function multipleChoice(reply: string, expected: string, choices = 26): Grade {
  const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ".slice(0, choices);
  const wanted = expected.trim().toUpperCase();
  if (wanted.length !== 1 || !letters.includes(wanted)) {
    throw new Error(`multipleChoice expects one letter of ${letters}, got ${quote(expected)}`);
  }
  const refused = overlong(reply);
  if (refused) return refused;
  const chosen = findChoice(withoutThinking(reply), letters);
  if (chosen === undefined) return grade(false, `no choice in ${quote(reply)}, expected ${wanted}`);
  return grade(chosen === wanted, `chose ${chosen}, expected ${wanted}`);
}

function findChoice(text: string, letters: string): string | undefined {
  const boxed = /^\W*(?:(?<=\\)text\w*\{\W*)?([A-Za-z])\b/.exec(lastBox(text) ?? "")?.[1]?.toUpperCase();
  if (boxed !== undefined && letters.includes(boxed)) return boxed;
  const only = /^\W*([A-Za-z])\W*$/.exec(text)?.[1]?.toUpperCase();
  if (only !== undefined && letters.includes(only)) return only;
  const squeezed = text.replace(/\s+/g, (space) => (space.includes("\n") ? "\n" : " "));
  for (const pattern of patterns) {
    const found = [...squeezed.matchAll(pattern)].map(([, letter = ""]) => letter.toUpperCase());
    const chosen = found.findLast((letter) => letter !== "" && letters.includes(letter));
    if (chosen !== undefined) return chosen;
  }
  return undefined;
}
