/**
 * Graders that compare a reply with text: numbers, letters of choices, words, tags, JSON and patterns. In this order: numbers,
 * the countdown game, exact text, choices, words, then formats.
 */
import { isIP } from "node:net";
import { Ajv, type ValidateFunction } from "ajv";
import { Ajv2019 } from "ajv/dist/2019.js";
import { Ajv2020 } from "ajv/dist/2020.js";
import { canonical, numbersIn } from "../base/text.ts";
import { codeBlock } from "./code.ts";
import { type Grade, grade, gradeOffThread, gradeOrZero, overlong, quote } from "./grade.ts";
import { findAnswer, lastBox, moves, withoutThinking } from "./math/answer.ts";
import { cleanLatex, measure } from "./math/notation.ts";
import { parseExpression } from "./math/parse.ts";
import { decimalOf, equal, type Value, withBudget } from "./math/rational.ts";

// Numbers.

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

/**
 * 1 if a reply's final number equals the reference's, else 0. The final number is the one after the last `####`, else the one in
 * the last `\\boxed{}`, else the one of "the answer is ...", else the last one of the text. It is read whole (`1/2`, `10^3`,
 * `5e3`, `1 234`) and compared by value, ignoring thousands separators, currency signs and units. Several numbers ("18 or 19")
 * are not a final number.
 *
 * @param reference GSM8K's `answer` column, or just the number
 * @throws Error if the reference does not contain a number
 */
export function gsm8kAnswer(reply: string, reference: string): Grade {
  const refused = overlong(reply);
  if (refused) return refused;
  const expected = finalNumber(reference);
  if (expected?.value === undefined)
    throw new Error(`the reference answer does not contain a number: ${quote(reference)}`);
  const found = finalNumber(withoutThinking(reply));
  if (found === undefined) return grade(false, `no final number in ${quote(reply)}, expected ${expected.number}`);
  const correct = found.value !== undefined && equal(found.value, expected.value);
  return grade(correct, `${found.number} ${found.where}, expected ${expected.number}`);
}

interface FinalNumber {
  number: string;
  /** Undefined for several numbers, and for what is not a number. */
  value: Value | undefined;
  where: string;
}

function finalNumber(text: string): FinalNumber | undefined {
  const marked = text.includes("####") ? afterMark(text.slice(text.lastIndexOf("####") + 4)) : undefined;
  if (marked) return { ...marked, where: "after ####" };
  if (/\\f?box/.test(text)) {
    const box = lastBox(text);
    // A last box without its brace.
    const content =
      box === undefined ? text.slice(text.lastIndexOf("box")).replace(/^\w+\s*\{?/, "") : findAnswer(text)?.answer;
    const inBox = readBox(content ?? "");
    if (inBox) return { ...inBox, where: "in \\boxed{}" };
  }
  const lastMatch = numberMatches(text).at(-1);
  const last = lastMatch && readNumber(text, lastMatch);
  const said = findAnswer(text);
  if (said?.where === 'after "answer is"' || said?.where === "is denied") {
    const first =
      afterMark(said.answer.slice(0, 400)) ?? (said.answer === "" ? { number: "none", value: undefined } : undefined);
    const isLast = first?.value && last && !last.isSeveral && last.value && equal(first.value, last.value);
    if (first) return { ...first, where: isLast ? "as the last number" : 'after "the answer is"' };
  }
  return last && { number: last.number, value: last.isSeveral ? undefined : last.value, where: "as the last number" };
}

/** The number at the start of a line, or what the line's arithmetic results in. */
function afterMark(text: string): Omit<FinalNumber, "where"> | undefined {
  const line = (/^\s*([^\n]*)/.exec(text)?.[1] ?? "").slice(0, 2000);
  if (/^[*_ ]*(?:step|part|case|solution)(?![a-z])/i.test(line)) return undefined;
  const result = line.slice(line.lastIndexOf("=") + 1);
  for (const place of [result, text.slice(0, 2000)]) {
    const [match] = numberMatches(place);
    if (!match) continue;
    const { number, value, isSeveral, continues } = readNumber(place, match);
    return { number, value: isSeveral || continues ? undefined : value };
  }
  return undefined;
}

function readBox(box: string): Omit<FinalNumber, "where"> | undefined {
  const content = box.slice(0, 2000);
  const plain = content.replaceAll("{,}", ",").replace(/\\(?:text|mathrm|textbf|mathbf)\s?\{([^{}]{0,200})\}/g, " $1 ");
  const found = numberMatches(plain);
  const [first] = found;
  if (!first) return undefined;
  const { text } = measure(cleanLatex(content));
  const whole = withBudget(100_000, () => {
    const read = parseExpression(text.slice(text.lastIndexOf("=") + 1));
    return read?.variables.size === 0 ? read.evaluate(new Map()) : undefined;
  });
  if (whole) return { number: plain.trim().slice(0, 60), value: whole };
  const isPlain =
    found.length === 1 && !/[\\^_]|(?<![a-z])(?:not|never)(?![a-z])/i.test(plain.replace(/\\[$%,! ]/g, ""));
  const { number, value } = readNumber(plain, first);
  return { number, value: isPlain ? value : undefined };
}

const digits = String.raw`(?:(?:\d{1,3}(?:,\d{3}(?!\d))+|[1-9]\d{0,2}(?:[ \u00a0\u2009\u202f]\d{3}(?![\d-]))+|\d+)(?:\.\d+)?|\.\d+)`;
/** A number with what belongs to it: a fraction, a power, an exponent, a product. */
const wholeNumbers = new RegExp(
  String.raw`(?:(?<![\w.)])[-−]|(?<![\w.]))\$?(${digits}(?:[eE][+-]?\d{1,4}(?![\w.]))?)((?:\s?(?:\*\*|[/^*×·÷]|x(?=\s?\d)|\\times|\\cdot)\s?\{?-?${digits}\}?){0,4})`,
  "g",
);

const exponents = new Map([
  ["thousand", 3],
  ["million", 6],
  ["billion", 9],
  ["trillion", 12],
]);

interface WrittenNumber {
  number: string;
  value: Value | undefined;
  /** One of several, as in "18 or 19" and "between 18 and 19". */
  isSeveral: boolean;
  /** Followed by more of a list or of a sum. */
  continues: boolean;
}

const numberMatches = (text: string) => [...text.matchAll(wholeNumbers)];

/** @param match of `wholeNumbers` in the text */
function readNumber(text: string, { 0: written, 1: first = "", 2: rest = "", index }: RegExpExecArray): WrittenNumber {
  const before = text.slice(Math.max(0, index - 30), index);
  const after = text.slice(index + written.length, index + written.length + 40);
  const maybe = "(?: (?:maybe|even|perhaps|possibly))?";
  const hasOther = new RegExp(String.raw`^[^.\n\d]{0,20}?(?<![a-z])or(?![a-z])${maybe} ?[$(]?-?\d`, "i").test(after);
  const isOther = new RegExp(String.raw`\d[^.\n\d]{0,20}?(?<![a-z])or${maybe} [$(]?$`, "i").test(before);
  const isRange = /(?<![a-z])between \$?[\d.,]+ and \$?$/i.test(before);
  const isDenied = /(?<![a-z])(?:not|never|isn.t) \$?$/i.test(before);
  const plain = `${/^[-−]/.test(written) ? "-" : ""}${first.replace(/[,\s\u00a0]/g, "")}`;
  const isSimple = rest === "" && !/e/i.test(first);
  return {
    number: isSimple ? canonical(plain) : written.trim().replace(/[\s,]+/g, ""),
    value: isAnother(before, after) ? undefined : numberValue(plain, rest, after),
    isSeveral: hasOther || isOther || isRange || isDenied,
    continues: /^\s*(?:[,;]|\+|and|to|[-–—])\s*\$?\d/.test(after),
  };
}

/** Another number than the one in digits: √2, 3½, 5!, 5 dozen. */
const isAnother = (before: string, after: string) =>
  /[√∛]\s?$/.test(before) || /^(?:[!½¼¾⅓⅔²³]|\s?(?:dozen|hundred|k|m|bn)(?![a-z]))/i.test(after);

function numberValue(plain: string, rest: string, after: string): Value | undefined {
  const multiple = /^\s?(thousand|million|billion|trillion)(?![a-z])/i.exec(after)?.[1];
  const factor = multiple === undefined ? "" : ` * 10^${exponents.get(multiple.toLowerCase())}`;
  const signs = rest
    .replace(/[,\u00a0]/g, "")
    .replaceAll("÷", "/")
    .replaceAll("x", "*");
  return withBudget(100_000, () => parseExpression(`${plain}${signs}${factor}`)?.evaluate(new Map()));
}

// The countdown game.

/**
 * The number game: 1 if the reply's expression uses each of the numbers exactly once, only + - * / and brackets, and
 * equals the target; else 0. `2(3 + 4)` is a product. The expression is found as in `mathAnswer`; "= target" beside it is ignored.
 *
 * @example countdown("<answer>(8 - 5) * 4</answer>", { numbers: [4, 5, 8], target: 12 }).reward // 1
 */
export function countdown(reply: string, { numbers, target }: { numbers: readonly number[]; target: number }): Grade {
  const refused = overlong(reply);
  if (refused) return refused;
  const found = findAnswer(reply);
  if (found === undefined) return grade(false, `no expression in ${quote(reply)}`);
  const sides = found.answer.split("=").map((side) => side.trim());
  // "12 = (8 - 5) * 4"
  const isResult = sides.length > 1 && /^-?\d+$/.test(sides[0]!) && Number(sides[0]) === target && numbers.length > 1;
  const written = (isResult ? sides[1] : sides[0])!;
  const plain = plainArithmetic(written);
  if (!/^[\d\s+\-*/().]+$/.test(plain) || /\*\s*\*|\d\s+[\d.]|\d\.\s*\(|\)\s*\./.test(plain)) {
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

/** Signs of LaTeX and of handwriting as those of a keyboard, with a sign for each product. */
function plainArithmetic(written: string): string {
  let plain = written
    .slice(0, 2000)
    .replace(/\\times|\\cdot|[×·∙⋅✕]|(?<=[\d)] ?)[xX](?= ?[\d(])/g, "*")
    .replace(/\\div|[÷∕]/g, "/")
    .replace(/[−–]/g, "-")
    .replace(/\\left|\\right|\\[,;! ]|\$/g, "")
    .replaceAll("[", "(")
    .replaceAll("]", ")");
  for (let depth = 0; depth < 6 && plain.includes("frac"); depth++) {
    plain = plain.replace(/\\[dt]?frac ?\{([^{}]*)\}\s?\{([^{}]*)\}/g, "(($1)/($2))");
  }
  return plain.replace(/(?<=\d)(\s?)\(|(?<=\))(\s?)(?=[\d(])/g, (found) => `*${found.trim()}`);
}

// Exact text and choices.

export interface ExactMatchOptions {
  /** Ignore the case of letters. Default false. */
  ignoreCase?: boolean;
}

/**
 * 1 if a reply is the expected text, ignoring white space at both ends, else 0.
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

/**
 * 1 if a reply chooses the expected letter, else 0. The choice is the letter in `\\boxed{B}`, else in `<answer>B</answer>`, else
 * that of "the answer is B", else of "I think it is B" or "B is correct", else of a line that begins with a letter as in a list,
 * else the only letter in parentheses. An article ("the answer is a matter of taste") is not a letter, and several letters
 * ("A or B") are not a choice.
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
  if (chosen === several) return grade(false, `several choices in ${quote(reply)}, expected ${wanted}`);
  return grade(chosen === wanted, `chose ${chosen}, expected ${wanted}`);
}

/** In place of a letter: the reply names more than one. */
const several = "several";

/**
 * Ways to state a choice, the clearest first. They expect plain text (`withoutMarks`) with runs of white space collapsed, since
 * adjacent repetitions that both match blanks would backtrack. The letter is the group that matches.
 */
const letter = String.raw`(?:\(([A-Za-z])\)|\[([A-Za-z])\]|([A-Z])(?![\w'’])\)?|([a-z])(?=\)|[.,;:]?(?:\n|$)))`;
const named = `(?:(?:the )?(?:correct |right |best )?(?:answer|choice|option|letter|alternative) ?(?:is )?:? ?)?`;
const adverb = `(?:(?:therefore|thus|then|hence|simply|clearly|definitely|indeed|likely|probably|most likely|still|also|either) ){0,2}`;
const ways = [
  String.raw`(?<![a-zA-Z])(?:answers?|ans)(?![a-zA-Z])(?: (?:to|for|of) [^\n.:=]{1,60}?)? ?(?:is|are|must be|should be|would be|will be|[:=]|-)? ?[:=]?\n{0,2} ?${adverb}${named}${letter}`,
  `(?<![a-zA-Z])(?:choice|option|selection|guess|pick|conclusion)(?![a-zA-Z]) ?(?:is|must be|should be|would be|[:=]) ?[:=]? ?${adverb}${named}${letter}`,
  String.raw`(?<![a-zA-Z])(?:choose|chose|pick|select|selected|go with|going with|say|believe|guess|opt for|conclude)(?: (?:that )?(?:it is|it's))? ${adverb}${named}${letter}|(?<![a-zA-Z])(?:it is|it’s|it's|it must be|it should be|that is|that's|this is|must be|correct:|therefore,?|thus,?|hence,?|so,?) ${adverb}${named}${letter}(?! ?(?:is|was|has|can|and|confuses|contains|does) )|(?<![\w(])\(?([A-Z])\)? (?:is|seems|must be|looks) (?:clearly |definitely |indeed |probably |likely |therefore |thus )?(?:the )?(?:only )?(?:most )?(?:correct|right|best|answer|accurate|appropriate)(?![a-zA-Z])`,
  String.raw`(?<=^|\n) ?(?:[-*>] )?\(?([A-Za-z])(?:\)?[.):]|\)|(?= ?(?:\n|$)))`,
  String.raw`\(([A-Z])\)|(?<![a-zA-Z])(?:option|choice|answer) ([A-Z])(?![\w'’])`,
].map((way) => new RegExp(way, "gi"));

function findChoice(text: string, letters: string): string | undefined {
  const stated = findAnswer(text);
  for (const where of ["in \\boxed{}", "in <answer>"]) {
    if (stated?.where !== where) continue;
    const contents = stated.parts ?? [
      stated.answer,
      ...(where === "in <answer>"
        ? [/<answer>([^<]*)<\/answer>(?![\s\S]*<answer>)/i.exec(text.slice(-5000))?.[1] ?? ""]
        : []),
    ];
    const chosen = contents.map((content) => onlyLetter(content, letters)).filter((one) => one !== undefined);
    if (chosen.length > 0) return chosen.every((one) => one === chosen[0]) ? chosen[0] : several;
    if (where === "in <answer>") return undefined;
  }
  const plain = withoutMarks(text);
  const only = /^\W*([A-Za-z])\W*$/.exec(plain)?.[1]?.toUpperCase();
  if (only !== undefined && letters.includes(only)) return only;
  for (const [rank, way] of ways.entries()) {
    const found = mentions(plain, way, letters, rank);
    const last = found.at(-1);
    if (!last) continue;
    if (found.some(({ letter }) => letter === several && found.indexOf(last) >= 0) && last.letter === several)
      return several;
    // A list of the choices, and letters in parentheses, are a choice if only one is left.
    if (rank >= 3) return found.every(({ letter }) => letter === last.letter) ? last.letter : undefined;
    const before = found.at(-2);
    if (before && before.letter !== last.letter) {
      const between = plain.slice(before.end, last.start);
      if (between.length < 40 && !moves.test(between) && !plain.slice(before.end, before.end + 2).includes("?"))
        return several;
    }
    return last.letter;
  }
  return undefined;
}

/** A letter alone, or before its text: `B`, `(B)`, `\\text{B}`, `B) Bern`, "option B". */
function onlyLetter(content: string, letters: string): string | undefined {
  const plain = withoutMarks(content).trim();
  const found =
    /^(?:(?:the )?(?:correct |final )?(?:option|choice|answer|letter) ?(?:is)?:? ?)?(?:\(([A-Za-z])\)|([A-Za-z]))(?=\)?[.):,\s-]|$)/i.exec(
      plain,
    );
  const chosen = (found?.[1] ?? found?.[2])?.toUpperCase();
  if (!found || chosen === undefined || !letters.includes(chosen)) return onlyStated(plain, letters);
  const rest = plain.slice(found[0].length);
  if (hasOtherLetter(rest, letters)) return several;
  const isBare = /^[\s).:,;!-]*$/.test(rest) || found[1] !== undefined;
  // "E = mc^2" and "a + b" are formulas; "B) Bern" and "B. Bern" are choices with their text.
  return isBare || /^\)?[.):]|^\)|^ [-–—] |^,? (?:because|since|as)(?![a-z])/.test(rest)
    ? chosen
    : onlyStated(plain, letters);
}

/** "I think it is B", inside of a tag. */
function onlyStated(plain: string, letters: string): string | undefined {
  for (const way of ways.slice(0, 3)) {
    const last = mentions(plain, way, letters, 0).at(-1);
    if (last) return last.letter;
  }
  return undefined;
}

interface Mention {
  letter: string;
  start: number;
  end: number;
}

function mentions(plain: string, way: RegExp, letters: string, rank: number): Mention[] {
  const found: Mention[] = [];
  for (const match of plain.matchAll(way)) {
    const written = match.slice(1).find((group) => group !== undefined) ?? "";
    const chosen = written.toUpperCase();
    const end = match.index + match[0].length;
    const after = plain.slice(end, end + 60);
    const isBracketed = new RegExp(`[([]${written}[)\\]]?$`).test(match[0]);
    // The flag i lets a capital group match a small letter, which is an article or a variable.
    const isSmall =
      written !== chosen && !isBracketed && !/^(?:[).,;:!]|\s*$|\n)/.test(after) && !/[).:]$/.test(match[0]);
    if (!letters.includes(chosen) || isSmall || /^ ?(?:[=+^<>]|\?)/.test(after)) continue;
    // "A matter of taste" and "I think".
    const next = /^ ([a-z’']+)/.exec(after)?.[1];
    const isLast = match[0].endsWith(written);
    const isArticle = isLast && /^[AI]$/i.test(written) && !isBracketed && next !== undefined && rank !== 3;
    if (isArticle && !/^(?:because|since|as|which|and|or|is|for|due|not|but|by|given|from|with|so|that)$/.test(next))
      continue;
    if (isDenied(plain.slice(Math.max(0, match.index - 20), match.index), after)) continue;
    found.push({ letter: hasOtherLetter(after, letters) ? several : chosen, start: match.index, end });
  }
  return found;
}

/** "Not (A)", "option A is wrong". */
const isDenied = (before: string, after: string) =>
  /(?<![a-z])(?:not|never|isn.t|eliminates?|rules? out|exclude|reject) $/i.test(before) ||
  /^[ ,]*(?:is|are|was|seems|looks|must be|can be|cannot)(?: clearly| also)? ?(?:wrong|incorrect|false|not|ruled|eliminated|excluded|be|impossible|n't|out)(?![a-z])|^ (?:isn|can|doesn|does not|confuses|contradicts|fails)/i.test(
    after,
  );

/** "A or B", "A, B", "A/B", "A. Or B". */
function hasOtherLetter(after: string, letters: string): boolean {
  const found =
    /^[).*\s]*(?:[,/& (]|(?:,|\.)? ?\(?(?:or|and|and\/or|alternatively|maybe|perhaps|possibly)(?![a-z]))[, ]*(?:(?:also|maybe|perhaps|possibly|even|option|choice|both|it is|it could be|it might be) ){0,3}\(?([A-Z])(?![\w'’])\)?(.{0,30})/i.exec(
      after,
    );
  const [, other = "", rest = ""] = found ?? [];
  if (other !== other.toUpperCase() || !letters.includes(other) || other === "") return false;
  if (/^[AI]$/.test(other) && /^ [a-z]/.test(rest) && !/^ (?:or|and) /.test(rest)) return false;
  return !isDenied("", rest);
}

/** Without Markdown's emphasis, math delimiters and fonts; runs of blanks are one, and so are line breaks. */
const withoutMarks = (text: string) =>
  text
    .replace(/\\(?:text|textbf|mathrm|mathbf|textrm|mathit|bf|rm|fbox|boxed)\s?\{([^{}]{0,200})\}/g, "$1")
    .replace(/\*\*|__|[`$"“”{}]|\\[()[\],;! ]|(?<=^|\n)[#>]+/g, "")
    .replace(/(?<=[\s(]|^)\*(?=\S)|(?<=\S)\*(?=\s|$|[.,):])/g, "")
    .replace(/\s+/g, (space) => (space.includes("\n") ? "\n" : " "));

// Words.

/** The words in lower case without punctuation and English articles, as in SQuAD; each character in one form. */
function wordsOf(text: string): string[] {
  // Upper case first, since ß and SS are the same letters.
  const folded = text
    .normalize("NFKC")
    .replace(/\p{Cf}/gu, "")
    .toUpperCase()
    .toLowerCase()
    .normalize("NFC");
  const plain = folded.replaceAll("ς", "σ").replace(/[^\p{L}\p{M}\p{N}\s]/gu, " ");
  return plain.split(/\s+/).filter((word) => word !== "" && !["a", "an", "the"].includes(word));
}

/**
 * The highest F1 of a reply's words with an expected answer's, in [0, 1]; `correct` if all words agree.
 *
 * @throws Error if an expected answer has no words
 * @example tokenF1("the city of Paris", "Paris").reward // 0.5
 */
export function tokenF1(reply: string, expected: string | readonly string[]): Grade {
  const answers = [expected].flat().map((answer) => ({ answer, words: wordsOf(answer) }));
  if (answers.length === 0) throw new Error("tokenF1 expects an answer to compare with, got none");
  const empty = answers.find(({ words }) => words.length === 0);
  if (empty) throw new Error(`tokenF1 expects an answer with words, got ${quote(empty.answer)}`);
  const refused = overlong(reply);
  if (refused) return refused;
  const said = wordsOf(reply);
  const scores = answers.map(({ answer, words }) => ({ answer, score: f1(said, words) }));
  const best = scores.reduce((left, right) => (right.score > left.score ? right : left));
  return grade(best.score === 1, `F1 ${best.score.toFixed(2)} of ${quote(reply)} to ${quote(best.answer)}`, best.score);
}

function f1(said: readonly string[], wanted: readonly string[]): number {
  const left = new Map<string, number>();
  for (const word of wanted) left.set(word, (left.get(word) ?? 0) + 1);
  let shared = 0;
  for (const word of said) {
    const count = left.get(word) ?? 0;
    if (count === 0) continue;
    left.set(word, count - 1);
    shared++;
  }
  return (2 * shared) / (said.length + wanted.length);
}

// Formats: tags, JSON, patterns.

/**
 * 1 if a reply consists of these tagged parts in this order, each exactly once and not empty, with only white space
 * between them; else half the share of tags that are opened once and then closed once.
 *
 * @example hasTags("<think>so</think><answer>4</answer>", ["think", "answer"]).reward // 1
 */
export function hasTags(reply: string, tags: readonly string[]): Grade {
  if (tags.length === 0) throw new Error("hasTags expects the names of tags, got none");
  const refused = overlong(reply);
  if (refused) return refused;
  const parts = tags.map((tag) => findPart(reply, tag));
  const sound = parts.filter((part) => part !== undefined);
  const correct = sound.length === tags.length && isWholeReply(reply, sound);
  const missing = tags.filter((_, index) => parts[index] === undefined);
  const explanation = correct
    ? `has ${tags.join(", ")} in order`
    : missing.length > 0
      ? `not exactly one ${missing.map((tag) => `<${tag}>...</${tag}>`).join(", ")}`
      : `the parts ${tags.join(", ")} are empty, out of order, or not all of the reply`;
  return grade(correct, explanation, correct ? 1 : (0.5 * sound.length) / tags.length);
}

interface Part {
  start: number;
  end: number;
  content: string;
}

/** Undefined unless the tag is opened once and then closed once. */
function findPart(text: string, tag: string): Part | undefined {
  const [start, close] = [onlyIndexOf(text, `<${tag}>`), onlyIndexOf(text, `</${tag}>`)];
  if (start === undefined || close === undefined || close < start) return undefined;
  return { start, end: close + tag.length + 3, content: text.slice(start + tag.length + 2, close) };
}

function onlyIndexOf(text: string, piece: string): number | undefined {
  const first = text.indexOf(piece);
  return first >= 0 && text.indexOf(piece, first + 1) < 0 ? first : undefined;
}

function isWholeReply(reply: string, parts: readonly Part[]): boolean {
  let end = 0;
  for (const part of parts) {
    if (part.start < end || reply.slice(end, part.start).trim() !== "" || part.content.trim() === "") return false;
    end = part.end;
  }
  return reply.slice(end).trim() === "";
}

/**
 * 1 if a reply, or its last fenced block, is JSON that the schema allows, else 0. The check runs in a thread for at most
 * 5 s, since patterns, `uniqueItems` and recursion can take exponential time. Formats such as "email" are checked.
 *
 * @param schema JSON Schema of draft 7, 2019-09 or 2020-12, as `z.toJSONSchema` of zod returns it. Without `$schema`: draft 7,
 * or 2020-12 if it uses one of its keywords
 * @throws Error if the schema is not valid
 * @example (await matchesSchema('{"city": "Bern"}', { type: "object", required: ["city"] })).reward // 1
 */
export const matchesSchema = (reply: string, schema: object): Promise<Grade> =>
  validateElsewhere(reply, JSON.stringify(schema), "the schema");

const validateElsewhere = gradeOffThread<string>(import.meta.url, "matchesSchemaOnThisThread");

const isDate = (text: string) => {
  const [, year, month, day] = /^(\d{4})-(\d\d)-(\d\d)$/.exec(text) ?? [];
  const last = new Date(Date.UTC(Number(year), Number(month), 0)).getUTCDate();
  return Number(month) >= 1 && Number(month) <= 12 && Number(day) >= 1 && Number(day) <= last;
};
const isTime = (text: string) =>
  /^(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?(?:z|[+-](?:[01]\d|2[0-3]):?[0-5]\d)$/i.test(text);

/** Formats of JSON Schema, and those that zod writes. Ajv ignores the others. */
const formats = {
  date: isDate,
  time: isTime,
  "date-time": (text: string) => /^[^t ]{10}[t ]/i.test(text) && isDate(text.slice(0, 10)) && isTime(text.slice(11)),
  duration: /^P(?!$)(?:\d+W|(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)?)$/,
  email: /^[^\s@<>()[\]\\,;:"]+@[a-z\d](?:[a-z\d-]*[a-z\d])?(?:\.[a-z\d](?:[a-z\d-]*[a-z\d])?)+$/i,
  hostname: /^(?=.{1,253}$)[a-z\d](?:[a-z\d-]{0,61}[a-z\d])?(?:\.[a-z\d](?:[a-z\d-]{0,61}[a-z\d])?)*$/i,
  ipv4: (text: string) => isIP(text) === 4,
  ipv6: (text: string) => isIP(text) === 6,
  uri: (text: string) => /^[a-z][a-z\d+.-]*:[^\s<>"{}|\\^`]+$/i.test(text) && URL.canParse(text),
  uuid: /^[\da-f]{8}-[\da-f]{4}-[\da-f]{4}-[\da-f]{4}-[\da-f]{12}$/i,
  regex: (text: string) => {
    try {
      return new RegExp(text, "u") instanceof RegExp;
    } catch {
      return false;
    }
  },
};

/** The schemas of this thread, by their JSON. The one that was used longest ago is dropped first. */
const compiled = new Map<string, ValidateFunction>();
const mostCompiled = 50;

function compileSchema(schema: string): ValidateFunction {
  const known = compiled.get(schema);
  compiled.delete(schema);
  const validate = known ?? newAjv(schema).compile(JSON.parse(schema));
  compiled.set(schema, validate);
  for (const oldest of compiled.keys()) {
    if (compiled.size <= mostCompiled) break;
    compiled.delete(oldest);
  }
  return validate;
}

/** One for each schema, since an instance keeps what it compiled. */
function newAjv(schema: string): Ajv {
  const options = { strict: false, ownProperties: true, formats, logger: false } as const;
  const draft = /"\$schema":"[^"]*(2019-09|2020-12|draft-0\d)/.exec(schema)?.[1];
  if (draft === "2019-09") return new Ajv2019(options);
  const isLater = /"(?:prefixItems|unevaluated\w+|dependent\w+|\$dynamicRef|minContains|maxContains)":/.test(schema);
  return draft === "2020-12" || (draft === undefined && isLater) ? new Ajv2020(options) : new Ajv(options);
}

export function matchesSchemaOnThisThread(reply: string, schema: string): Grade {
  const validate = compileSchema(schema);
  let value: unknown;
  try {
    value = JSON.parse(codeBlock(reply)?.code ?? reply);
  } catch (error) {
    return grade(false, `${quote(reply)} is not JSON: ${(error as Error).message}`);
  }
  return gradeOrZero(() => {
    if (validate(value)) return grade(true, "is JSON that the schema allows");
    const [wrong] = validate.errors ?? [];
    return grade(false, `${wrong?.instancePath || "it"} ${wrong?.message}`);
  }, "the schema");
}

/**
 * 1 if the pattern occurs in a reply, else 0; anchor it with ^ and $ to match the whole reply. The pattern runs in a
 * thread for at most 5 s, since some patterns take exponential time on some replies.
 *
 * @example (await matchesFormat("<answer>12</answer>", /^<answer>\d+<\/answer>$/)).reward // 1
 */
export const matchesFormat = (reply: string, pattern: RegExp): Promise<Grade> =>
  matchElsewhere(reply, pattern, `${pattern}`);

const matchElsewhere = gradeOffThread<RegExp>(import.meta.url, "matchesFormatOnThisThread");

export function matchesFormatOnThisThread(reply: string, pattern: RegExp): Grade {
  return gradeOrZero(() => {
    // `search` starts at the beginning, regardless of the `lastIndex` of a global pattern.
    const correct = reply.search(pattern) >= 0;
    return grade(correct, `${quote(reply)} ${correct ? "matches" : "does not match"} ${pattern}`);
  }, `${pattern}`);
}
