/**
 * Finds the final answer in a reply, in the styles of models: boxes, tags, `####`, "**Answer:** 42 because ...", the last formula
 * or number. An answer that hedges ("4 or 5", two boxes) is read whole, so that it equals only an expected answer of both.
 */
import { type Grade, grade, overlong, quote } from "../grade.ts";
import { compareAnswers } from "./equivalent.ts";

export interface FoundAnswer {
  answer: string;
  where: string;
  /** Several boxes or tags that are one answer together, in order. */
  parts?: string[];
  /** The last sign of a sentence is "!", which may be a factorial. */
  exclaimed?: boolean;
}

/** The text after the last `</think>`; empty if thinking is not closed. */
export function withoutThinking(reply: string): string {
  const end = reply.lastIndexOf("</think>");
  if (end >= 0) return reply.slice(end + "</think>".length);
  return reply.includes("<think>") ? "" : reply;
}

/** The content of the last `\boxed{...}` or `\fbox{...}`; undefined if there is none or it is not closed. */
export const lastBox = (text: string): string | undefined => boxes(text)?.at(-1)?.content;

/**
 * The first of these that the reply has: boxes, <answer> tags, the last of `#### 42` and "the answer is 42", the last formula,
 * the last number.
 */
export function findAnswer(reply: string): FoundAnswer | undefined {
  const text = withoutThinking(reply);
  const boxed = boxes(text);
  if (boxed === undefined) return undefined;
  if (boxed.length > 0) return together(text, boxed, "in \\boxed{}");
  const tagged = tags(text);
  const inTags = together(text, tagged, "in <answer>");
  if (inTags) return tagged.length > 1 && inTags.parts ? inTags : { ...inTags, answer: fromSentence(inTags.answer) };
  return stated(text) ?? lastFormula(text) ?? lastNumber(text);
}

// Pieces of the reply, and whether several of them are one answer.

interface Piece {
  content: string;
  start: number;
  end: number;
}

/** All outermost boxes; undefined if the last one is not closed. */
function boxes(text: string): Piece[] | undefined {
  const found: Piece[] = [];
  const command = /\\(?:boxed|fbox)(?![a-zA-Z])\s*/g;
  for (let match = command.exec(text); match; match = command.exec(text)) {
    const from = match.index + match[0].length;
    let end = -1;
    let content = "";
    if (text[from] !== "{") {
      content = /^[\w.+-]+/.exec(text.slice(from, from + 100))?.[0] ?? "";
      end = from + content.length;
      if (content === "") return undefined;
    } else {
      end = closingBrace(text, from);
      // No later brace can close it either.
      if (end < 0) return undefined;
      content = text.slice(from + 1, end);
    }
    found.push({ content: innermost(content), start: match.index, end: end + 1 });
    command.lastIndex = end;
  }
  return found;
}

/** `\boxed{\boxed{4}}` */
function innermost(content: string): string {
  const inner = /^\s*\\(?:boxed|fbox)\s*(?=\{)/.exec(content);
  if (!inner) return content;
  const end = closingBrace(content, inner[0].length);
  return end >= 0 && content.slice(end + 1).trim() === "" ? content.slice(inner[0].length + 1, end) : content;
}

function closingBrace(text: string, open: number): number {
  let depth = 0;
  for (let index = open; index < text.length; index++) {
    if (text[index] === "\\") index++;
    else if (text[index] === "{") depth++;
    else if (text[index] === "}" && --depth === 0) return index;
  }
  return -1;
}

/** The contents of `<answer>...</answer>`. A pattern over both tags would take quadratic time. */
function tags(text: string): Piece[] {
  const found: Piece[] = [];
  let open: { start: number; from: number } | undefined;
  for (const { 0: tag, index } of text.matchAll(/<\/?answer>/gi)) {
    if (tag[1] !== "/") open ??= { start: index, from: index + tag.length };
    else if (open) {
      const content = text.slice(open.from, index).trim();
      if (content !== "") found.push({ content, start: open.start, end: index + tag.length });
      open = undefined;
    }
  }
  return found;
}

/** Words between two answers after which only the later one counts. */
export const moves =
  /(?<![a-zA-Z])(?:no|wait|actually|correct\w*|instead|sorry|mistake\w*|wrong|rather|hmm|however|but|simplif\w*|therefore|so|thus|hence|final\w*|equal\w*|then|next|step|check\w*|verif\w*|reduces|becomes|which|conclu\w*|now|result\w*|substitut\w*|recall|from|since)(?![a-zA-Z])/i;
const hedges =
  /(?<![a-zA-Z])(?:or|either|alternatively|maybe|perhaps|possibly|could|might|may|also|another|both)(?![a-zA-Z])/i;

/** The pieces at the end that are one answer: "x is 1 or 3", but not a first result and the one that follows from it. */
function together(text: string, pieces: readonly Piece[], where: string): FoundAnswer | undefined {
  const isDenied = ({ start }: Piece) =>
    /(?<![a-zA-Z])(?:not|never|n't|isn.t)\s*[$\\([*]*$/i.test(text.slice(Math.max(0, start - 20), start));
  const counted = pieces.filter((piece) => !isDenied(piece));
  const last = counted.at(-1);
  if (!last) return undefined;
  const group = [last];
  for (let index = counted.length - 2; index >= 0; index--) {
    const [piece, later] = [counted[index]!, group[0]!];
    const length = later.start - piece.end;
    const between = text.slice(piece.end, piece.end + Math.min(length, 201));
    const isHedged = length <= 100 && hedges.test(between);
    if (!isHedged && (length > 200 || moves.test(between))) break;
    group.unshift(piece);
    if (group.length > 50) break;
  }
  const contents = distinct(group.map(({ content }) => content));
  if (contents.length === 1) return { answer: last.content, where };
  return { answer: contents.join(", "), where, parts: contents };
}

/** Without those that equal an earlier one. The last spelling of a single value is kept. */
function distinct(contents: string[]): string[] {
  const [first = ""] = contents;
  const isOne = contents.every((content) => content === first || compareAnswers(content, first) === true);
  return isOne ? [contents.at(-1)!] : contents;
}

// Sentences.

const emphasis = String.raw`[*_#>\s]`;
/** "The final answer is", "**Answer:**", "Answer" as a heading, and `####` of GSM8K. */
const lead = new RegExp(
  String.raw`####(?!#)[ \t]*(?=\S)|(?<![a-zA-Z])(?:answers?|ans\.?)(?![a-zA-Z])(?: (?:to|for|of) [^\n.:=]{1,80}?)?${emphasis}{0,9}(?:(?<![a-zA-Z])(?:is|are|would be|must be|should be|will be|equals)(?![a-zA-Z])|[:=])[*_\s]{0,9}[:=]?|(?<=^|\n)[*_#> ]{0,9}(?:the )?(?:final )?answer[*_: ]{0,9}(?=\n)`,
  "gi",
);
/** Words between "the answer is" and the answer. */
const filler =
  /^(?:[\s*_:>→≈✅]|\.{3}|…|-\s+(?=\*\*)|(?:therefore|thus|then|hence|simply|just|indeed|also|now|clearly|exactly|precisely|equal to|given by|as follows|still|again|obviously|that|about|approximately|a total of|the (?:number|value|fraction|integer|interval|point|set|expression|function|matrix|vector|pair|equation|word))(?![a-zA-Z])[\s,:]*)+/i;

function stated(text: string): FoundAnswer | undefined {
  const found: (Piece & { where: string; rest: string; exclaimed: boolean })[] = [];
  let denied = false;
  for (const { 0: written, index } of text.matchAll(lead)) {
    const from = index + written.length;
    if (found.length > 0 && from <= found.at(-1)!.end) continue;
    const isMark = written.startsWith("#") && !/[a-z]/i.test(written);
    const start = from + (filler.exec(text.slice(from, from + 300))?.[0].length ?? 0);
    const { content, end, rest, exclaimed } = sentence(text, start);
    // A heading of the fourth level.
    if (isMark && /^(?:\*\*)?(?:step|solution|part|case|(?:final |the )?answer)(?![a-z])/i.test(content)) continue;
    // "Final answer: the final answer is 12" states it once.
    if (content === "" || /^(?:[a-z]+ ){0,4}answers? (?:is|are)(?![a-z])/i.test(content)) continue;
    if (/^(?:not|never|isn.t|neither|no longer|unknown|unclear|wrong|incorrect)(?![a-zA-Z])/i.test(content))
      denied = true;
    else
      found.push({ content, rest, exclaimed, start: index, end, where: isMark ? "after ####" : 'after "answer is"' });
  }
  const clear = found.filter(({ content }) => /[\d\\$]|^\W*\w{1,2}\W*$/.test(content));
  const pieces =
    clear.length > 0
      ? clear
      : found.filter(
          ({ content }) =>
            !/^(?:correct|right|consistent|reasonable|verified|clear|in|on|to|obtained|found|based)(?![a-z])/.test(
              content,
            ),
        );
  const last = pieces.at(-1);
  if (!last) return denied ? { answer: "", where: "is denied" } : undefined;
  // "The answer is 4. The answer is 5."
  const group = [last];
  for (let index = pieces.length - 2; index >= 0; index--) {
    const [piece, later] = [pieces[index]!, group[0]!];
    const between = `${piece.rest}${text.slice(piece.end, later.start)}`;
    if (later.start - piece.end > 40 || (moves.test(between) && !hedges.test(between))) break;
    group.unshift(piece);
  }
  const contents = distinct(group.map(({ content }) => content));
  const hedge = hedgeAfter(text, last.end);
  const { where, exclaimed } = last;
  return { answer: `${contents.join(" or ")}${hedge}`, where, exclaimed };
}

/** "The answer is 4. Or maybe 5." */
function hedgeAfter(text: string, end: number): string {
  const next = text.slice(end, end + 80);
  const found =
    /^[\s.;)*_]*(?:but |then )?(?:or|alternatively|maybe|perhaps|possibly|(?:it|the answer)? ?(?:could|might|may)(?: also)?)(?![a-zA-Z])[^.\n]*/i.exec(
      next,
    );
  return found && /\d|\$/.test(found[0]) ? ` or ${found[0].replace(/^\W+/, "")}` : "";
}

const closings = new Map([
  ["$$", "$$"],
  ["$", "$"],
  ["\\(", "\\)"],
  ["\\[", "\\]"],
]);
const longestSentence = 2500;
const longestFormula = 1000;
/** Statements are looked for everywhere, formulas at the end of long replies. */
const longestEnd = 50_000;

/** The answer that a sentence begins with: up to its end, and to a clause (`rest`) such as "because ..." or "which is even". */
function sentence(text: string, start: number): { content: string; rest: string; end: number; exclaimed: boolean } {
  const parts: { text: string; isFormula: boolean }[] = [];
  let plain = "";
  let index = start;
  const stop = Math.min(text.length, start + longestSentence);
  const isEmpty = () => parts.length === 0 && /^[\s*_:>#]*$/.test(plain);
  while (index < stop) {
    const open = /^(?:\$\$|\$|\\\(|\\\[)/.exec(text.slice(index, index + 2))?.[0];
    if (open !== undefined && text[index - 1] !== "\\") {
      const close = formulaEnd(text, index, open);
      if (close >= 0) {
        parts.push(
          { text: plain, isFormula: false },
          { text: text.slice(index + open.length, close).trim(), isFormula: true },
        );
        plain = "";
        index = close + open.length;
        continue;
      }
    }
    const character = text[index]!;
    if (character === "\n" && !isEmpty()) break;
    if (
      /[.!?。]/.test(character) &&
      /^[.!?。](?:["'”)\]*_]*(?:\s|$)|<)/.test(text.slice(index, index + 6)) &&
      !isEmpty()
    ) {
      // A factorial, unless a sentence ends with it.
      if (character !== "!" || !/\d$/.test(plain)) break;
    }
    plain += character;
    index++;
  }
  parts.push({ text: plain, isFormula: false });
  let [content, rest] = ["", ""];
  for (const part of parts) {
    if (rest !== "") rest += part.text;
    else if (part.isFormula) content += ` ${part.text} `;
    else {
      const words = withoutEmphasis(part.text);
      const cut = clauseStart(words, content.trim() !== "");
      content += cut < 0 ? words : words.slice(0, cut);
      if (cut >= 0) rest = words.slice(cut);
    }
  }
  const said = content
    .replace(/\p{Extended_Pictographic}|\p{Cf}|\ufe0f|[✓✗]/gu, "")
    .trim()
    .replace(/[*_]+$/, "")
    // "42 (forty-two)"
    .replace(/ ?\((?!or(?![a-z]))[a-z][a-z -]{2,60}\)$/, "")
    .replace(/^(["'“‘])([\s\S]+)["'”’]$/, "$2");
  const exclaimed = plain.trimEnd().endsWith("!") && rest === "";
  return { content: said.replace(/[\s,;:–—-]+$/, ""), rest, end: index, exclaimed };
}

/** Where the formula that opens at `index` is closed; -1 if the sign is a currency. */
function formulaEnd(text: string, index: number, open: string): number {
  const from = index + open.length;
  const length = text.slice(from, from + longestFormula).indexOf(closings.get(open)!);
  if (length < 0) return -1;
  const close = from + length;
  if (open !== "$") return close;
  const content = text.slice(index + 1, close);
  const isMoney =
    /^\d[\d.,]*(?![\d\\^_{}+*/=])(?:\s|$)/.test(content) &&
    (/\s$/.test(content) || /^\d/.test(text.slice(close + 1, close + 2)));
  return isMoney || content.trim() === "" || content.includes("\n\n") ? -1 : close;
}

/** `2**3` and `(2 + 3)* 4` keep their signs. */
const withoutEmphasis = (text: string) =>
  text
    .replace(/(?<![\w)])(?:\*\*|__)|(?:\*\*|__)(?![\w(])/g, "")
    .replace(/(?<![\w)] ?)\*(?=[^\s*])([^*\n]{0,200}[^\s*])\*(?! ?[\w(])/g, "$1")
    .replaceAll("`", "");

const clause =
  /(?<![a-zA-Z])(?:because|since|which|where|whose|as|so|thus|hence|therefore|given|due|obtained|meaning|giving|making|that|by|after|from|with|using|once|considering|in (?:total|all|simplest|lowest|the|each|exact|this|our)|altogether|total|overall|respectively)(?![a-zA-Z])|(?<![a-zA-Z])(?:for|when|if|while)(?![a-zA-Z])(?![\s\S]*(?<![a-zA-Z])(?:and|or|otherwise)(?![a-zA-Z])[\s\S]*\d)|i\.e\.| [–—] | - (?=[a-z]{2})/i;

function clauseStart(words: string, hasContent: boolean): number {
  const found = clause.exec(words);
  if (!found) return -1;
  const before = words.slice(0, found.index).replace(/[\s,(;]+(?:(?:and|but)[\s,]*)?$/, "");
  return hasContent || /\w/.test(before) ? before.length : -1;
}

/** The answer in a tag that may hold a sentence. */
function fromSentence(content: string): string {
  if ((content.match(/[a-z]{2,}/gi) ?? []).length < 2 || /^\\/.test(content.trim())) {
    const only = sentence(content, filler.exec(content)?.[0].length ?? 0);
    return only.end >= content.trimEnd().length - 1 && only.content !== "" ? only.content : content;
  }
  const said = stated(content);
  if (said) return said.answer;
  const { content: first, end } = sentence(content, 0);
  if (/[a-z]{3}/i.test(first) || end < content.trimEnd().length - 1) {
    if (/(?<![a-zA-Z])(?:not|never|neither|isn.t|cannot)(?![a-zA-Z])/i.test(content)) return content;
    const only =
      lastFormula(content) ??
      (/^\W*(?:there|he|she|it|they|we|so|thus|the|this|total|[A-Z][a-z]+ (?:has|have|is|needs|sold|gets|earns|pays))(?![a-z])/i.test(
        content,
      )
        ? lastNumber(content)
        : undefined);
    if (only) return only.answer;
  }
  return first || content;
}

// Without a statement: the last formula, or the last number if it comes later.

/** "It cannot be 42", "42 is not the answer". */
function isDenied(text: string, start: number, end: number): boolean {
  const [before, after] = [text.slice(Math.max(0, start - 40), start), text.slice(end, end + 30)];
  return (
    /(?<![a-z])(?:not|never|cannot|neither|[a-z]+n['’]t)(?: [a-z]+){0,4} ?[$\\([*]*$/i.test(before) ||
    /^[$\\)\]*]*(?: is| was| can| seems)(?:n['’]t| not| wrong| incorrect| impossible)(?![a-z])/i.test(after)
  );
}

function lastFormula(reply: string): FoundAnswer | undefined {
  const text = reply.slice(-longestEnd);
  const found: Piece[] = [];
  const open = /\$\$|\$|\\\(|\\\[/g;
  for (let match = open.exec(text); match; match = open.exec(text)) {
    if (text[match.index - 1] === "\\") continue;
    const end = formulaEnd(text, match.index, match[0]);
    if (end < 0) continue;
    open.lastIndex = end + match[0].length;
    found.push({
      content: text.slice(match.index + match[0].length, end).trim(),
      start: match.index,
      end: open.lastIndex,
    });
  }
  const isSide = ({ start }: Piece) =>
    /(?<![a-zA-Z])(?:where|with|since|because|for|when|if|as|using|from|by|at)\s*$/i.test(
      text.slice(Math.max(0, start - 12), start),
    );
  const last = found.findLastIndex((piece) => !isSide(piece));
  const group = found[last] ? [found[last]] : [];
  if (group.length === 0) return undefined;
  for (let index = last - 1; index >= 0; index--) {
    if (
      !/^[\s,;]*(?:and|or)?[\s,]*$/i.test(
        text.slice(found[index]!.end, Math.min(group[0]!.start, found[index]!.end + 20)),
      ) ||
      group[0]!.start - found[index]!.end > 20
    )
      break;
    group.unshift(found[index]!);
  }
  // "So $2x = 10$. He needs 5 hours."
  const rest = text.slice(group.at(-1)!.end);
  if (/[.\n][\s\S]*\d/.test(rest.slice(0, 2000)) && lastNumber(rest)) return undefined;
  const hedge = hedgeAfter(text, group.at(-1)!.end);
  const answer = isDenied(text, group[0]!.start, group.at(-1)!.end)
    ? ""
    : group.map(({ content }) => content).join(", ");
  return { answer: answer + hedge, where: "as the last formula" };
}

const digits = String.raw`(?:\d{1,3}(?:,\d{3})+(?!\d)|[1-9]\d{0,2}(?: \d{3})+(?!\d)|\d+)(?:\.\d+)?`;
const numeral = String.raw`(?:(?<![\w.)])[-−])?\$?${digits}(?:[eE][+-]?\d+(?![\w.]))?`;
const number = new RegExp(
  String.raw`(?<![\w.])(?:${numeral})(?: ?(?:\*\*|[/^×·*]) ?\{?-?${digits}\}?|:${digits}){0,3}%?`,
  "g",
);

function lastNumber(text: string): FoundAnswer | undefined {
  const found = [...text.matchAll(number)];
  // "12 at x = 3"
  const isSide = (index: number) =>
    /(?<![a-z])(?:at|when|where|for|if|with) [a-z] ?= ?$/i.test(text.slice(Math.max(0, index - 12), index));
  const position = found.length > 1 && isSide(found.at(-1)!.index) ? found.length - 2 : found.length - 1;
  const last = found[position];
  if (!last) return undefined;
  let [answer, later] = [last[0], last.index];
  // "It is 18 or 19": the earlier ones belong to it.
  for (let index = position - 1; index >= 0; index--) {
    const { 0: written, index: at } = found[index]!;
    const between = text.slice(at + written.length, Math.min(later, at + written.length + 40));
    const isJoined = /^[^.\n\d]*(?<![a-zA-Z])or(?![a-zA-Z])[^.\n\d]*$|^[,?]? (?:(?:and|maybe|possibly|perhaps) )?$/;
    if (later - at - written.length > 30 || !isJoined.test(between)) break;
    answer = `${written} or ${answer}`;
    later = at;
  }
  const end = last.index + last[0].length;
  const denied = isDenied(text, later, end);
  return { answer: denied ? "" : answer + hedgeAfter(text, end), where: "as the last number" };
}

// The grade.

export interface MathAnswerOptions {
  /** Accept only an answer in `\boxed{}`. Default false, which also accepts the other forms of `findAnswer`. */
  boxed?: boolean;
}

/**
 * 1 if a reply's final answer is mathematically equal to one of the expected answers, else 0. Text between `<think>` and
 * `</think>` is ignored. An expected answer of several values needs all of them, in one box or in one box each.
 *
 * @param expected one or several answers; of a whole solution, the last `\boxed{}` is the answer
 * @throws Error if there is no expected answer
 * @example mathAnswer("So it is \\boxed{\\frac{1}{2}}.", "0.5").reward // 1
 */
export function mathAnswer(
  reply: string,
  expected: string | number | readonly (string | number)[],
  { boxed = false }: MathAnswerOptions = {},
): Grade {
  const references = [expected].flat().map((reference) => {
    const text = String(reference);
    const found = boxes(text);
    return (found && together(text, found, "")?.answer) ?? lastBox(text) ?? text;
  });
  if (references.length === 0 || references.some((reference) => reference.trim() === "")) {
    throw new Error("mathAnswer expects an answer to compare with, got none");
  }
  const refused = overlong(reply);
  if (refused) return refused;
  const text = withoutThinking(reply);
  const inBoxes = boxes(text) ?? [];
  const found = boxed && inBoxes.length === 0 ? undefined : findAnswer(reply);
  const wanted = references.map(quote).join(" or ");
  if (!found) return grade(false, `no ${boxed ? "\\boxed{} " : ""}answer in ${quote(reply)}, expected ${wanted}`);
  const all = inBoxes.length > 1 && inBoxes.length <= 50 ? distinct(inBoxes.map(({ content }) => content)) : [];
  const verdicts = references.map((reference) => compareFound(found, all, reference));
  const correct = verdicts.includes(true);
  const verdict = correct
    ? "equals"
    : verdicts.includes(undefined)
      ? "takes too long to compare with"
      : "does not equal";
  return grade(correct, `${quote(found.answer)} ${found.where} ${verdict} ${wanted}`);
}

/** @param all the contents of all boxes, each of which may answer a part of the question */
function compareFound(
  { answer, where, parts, exclaimed }: FoundAnswer,
  all: readonly string[],
  reference: string,
): boolean | undefined {
  const verdict = compareAnswers(answer, reference);
  if (verdict) return true;
  for (const several of [parts ?? [], all]) {
    if (several.length < 2) continue;
    if (compareAnswers(several.join(", "), reference) || compareAnswers(`(${several.join(", ")})`, reference))
      return true;
  }
  if (parts) return verdict;
  // "1/2 or 0.5" says one value twice.
  const alternatives = answer.split(/,? or /);
  if (alternatives.length > 1 && alternatives.length < 5 && alternatives.every((one) => compareAnswers(one, reference)))
    return true;
  // A sentence with one number, and a box that holds a sentence.
  const inner = [yesOrNo.exec(answer)?.[0], numberOf(answer)];
  if (exclaimed) inner.push(answer.replace(/!$/, ""));
  if (where.startsWith("in ") && /[a-zA-Z]{3}/.test(answer)) {
    inner.push(stated(answer.replace(/\\text\s?\{([^{}]*)\}/g, "$1"))?.answer);
  }
  return inner.some((one) => one !== undefined && one !== "" && compareAnswers(one, reference)) || verdict;
}

const yesOrNo = /^(?:yes|no|true|false)(?=[,;.:] (?!or(?![a-z])))/i;
/** Words after which a number of a sentence is not the answer. */
const otherThan =
  /(?<![a-zA-Z])(?:not|never|neither|nor|\w+n['’]t|cannot|no|none|but|or|and|either|between|least|most|more|less|fewer|greater|larger|smaller|over|under|above|below|almost|nearly|half|double|twice|triple|plus|minus|times|anything|except|wrong|incorrect|than|unless|although|alternatively|maybe|possibly|perhaps|if|when|answer)(?![a-zA-Z])/i;

/** "There are 12 ways." */
function numberOf(said: string): string | undefined {
  if (!/^["'(]?[a-z]{2}[a-z']*[ ,]/i.test(said) || otherThan.test(said) || said.length > 300) return undefined;
  const [only, another] = [...said.matchAll(number)];
  const isFormula = /[\\^_{}=<>]/.test(said);
  if (isFormula) return /^[a-z ,']* (?:is|are|equals) (?=[^a-z ]|[a-z](?![a-z]))(.*)$/i.exec(said)?.[1];
  return another ? undefined : only?.[0];
}
