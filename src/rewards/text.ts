/**
 * The number game: 1 if the reply's expression uses each of the numbers exactly once, only + - * / and brackets, and
 * equals the target; else 0. The expression is found as in `mathAnswer`; "= target" after it is ignored.
 *
 * @example countdown("<answer>(8 - 5) * 4</answer>", { numbers: [4, 5, 8], target: 12 }).reward // 1
 */
import { Ajv, type ValidateFunction } from "ajv";
import { canonical, numbersIn } from "../base/text.ts";
import { codeBlock } from "./code.ts";
import { type Grade, grade, gradeOffThread, gradeOrZero, overlong, quote } from "./grade.ts";
import { findAnswer, lastBox, withoutThinking } from "./math/answer.ts";
import { parseExpression } from "./math/parse.ts";
import { decimalOf, equal, withBudget } from "./math/rational.ts";

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
 * 1 if a reply, or its last fenced block, is JSON that the schema allows, else 0. The check runs in a thread for at most
 * 5 s, since patterns, `uniqueItems` and recursion can take exponential time.
 *
 * @param schema JSON Schema (draft 7)
 * @throws Error if the schema is not valid
 * @example (await matchesSchema('{"city": "Bern"}', { type: "object", required: ["city"] })).reward // 1
 */
export const matchesSchema = (reply: string, schema: object): Promise<Grade> =>
  validateElsewhere(reply, JSON.stringify(schema), "the schema");

const validateElsewhere = gradeOffThread<string>(import.meta.url, "matchesSchemaOnThisThread");

/** The schemas of this thread, by their JSON. */
const compiled = new Map<string, ValidateFunction>();

export function matchesSchemaOnThisThread(reply: string, schema: string): Grade {
  const validate = compiled.get(schema) ?? new Ajv({ strict: false, ownProperties: true }).compile(JSON.parse(schema));
  compiled.set(schema, validate);
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

/** The words in lower case without punctuation and English articles, as in SQuAD. */
function wordsOf(text: string): string[] {
  const plain = text.toLowerCase().replace(/[^\p{L}\p{N}\s]/gu, " ");
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
