/** Random replies for testing graders: typical text, broken text, and repetitions that expose slow patterns. */
import { randomInteger } from "../base/values.ts";

type Random = () => number;

const withoutBlanks = String.raw`
\boxed{ \fbox{ \boxed { } ( ) [ ] \{ \} <answer> </answer> <think> </think> <a> </a> <b> </b> #### answer: option choice is
A (B) **C** D) $ $$ \( \) \[ \] \frac \frac{1}{2} \dfrac12 \sqrt \sqrt[3]{ ^ _ ^{ _{ ^\circ + - * / = < > \le \in \cup \pm
, ; . .. ! | % 0 1 7 12 170! ${"9".repeat(40)} 0.5 .5 1,234 1e5 1e999 -3 00 \infty \pi e i x y xy \ln \binom{5}{2} \text{
\text{cm} million \left( \right) \, ~ \ \\ " ' word Evelyn <tool_call> </tool_call> [TOOL_CALLS] [ARGS] [CALL_ID] <|python_tag|>
{"name": "arguments" "parameters" {"a": null true [1] [[ ]] é 日本 √ ∞ ≤ ½ 😀 İ ß __proto__`;

const pieces = [
  ...withoutBlanks.trim().split(/\s+/),
  ...[" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u202e", "\u0000", "\ud800", "`", "```json\n", "\n```\n", "```"],
  ...[
    ", ",
    ": ",
    " and ",
    " or ",
    " cm^2",
    " miles",
    "\\sin ",
    "\\log_2 ",
    "The answer",
    "answer is",
    "final answer is",
  ],
  ...['{"name": "add", "arguments": {"a": 1}}', '{"score": 0.5, "reason": "x"}'],
];

const pick = <Item>(random: Random, items: readonly Item[]): Item => items[Math.floor(random() * items.length)] as Item;

const some = (random: Random, most: number): string =>
  Array.from({ length: randomInteger(random, 0, most) }, () => pick(random, pieces)).join("");

/** One in thirty is large, one in a thousand larger than graders read. */
export function randomReply(random: Random): string {
  const size = random();
  if (size < 0.15) return mistyped(random, randomExpression(random).text);
  if (size < 0.6) return some(random, 12);
  const pumped = `${some(random, 2)}${pick(random, pieces)}`;
  const characters = size < 0.9 ? 400 : size < 0.967 ? 4000 : size < 0.999 ? 100_000 : 1_100_000;
  return some(random, 3) + pumped.repeat(Math.ceil((random() * characters) / pumped.length)) + some(random, 3);
}

/** Inserts pieces and removes characters. */
function mistyped(random: Random, text: string): string {
  let result = text;
  for (let count = randomInteger(random, 1, 3); count > 0; count--) {
    const at = randomInteger(random, 0, result.length);
    result =
      result.slice(0, at) +
      (random() < 0.5 ? pick(random, pieces) : "") +
      result.slice(at + randomInteger(random, 0, 2));
  }
  return random() < 0.5 ? result : `\\boxed{${result}}`;
}

/** An expression and its value, which is computed without the parser. */
interface Spelled {
  text: string;
  top: bigint;
  bottom: bigint;
}

interface Part extends Spelled {
  /** Whether it can be an operand without brackets. */
  atom: boolean;
}

export function randomExpression(random: Random, depth = randomInteger(random, 0, 3)): Part {
  if (depth === 0) return leaf(random);
  const [left, right] = [
    randomExpression(random, depth - 1),
    randomExpression(random, randomInteger(random, 0, depth - 1)),
  ];
  const gap = pick(random, ["", " ", "\\,", "\\ "]);
  const [a, b] = [bracketed(random, left), bracketed(random, right)];
  const sum = left.top * right.bottom;
  const other = right.top * left.bottom;
  const bottom = left.bottom * right.bottom;
  const product = { top: left.top * right.top, bottom, atom: false };
  const quotient = { top: sum, bottom: other };
  const kind = randomInteger(random, 0, 7);
  if (kind === 0) return { text: `${a}${gap}+${gap}${b}`, top: sum + other, bottom, atom: false };
  if (kind === 1) return { text: `${a}${gap}-${gap}${b}`, top: sum - other, bottom, atom: false };
  if (kind === 2) return { text: `${a}${gap}${pick(random, ["\\cdot ", "\\times ", "*", "×"])}${gap}${b}`, ...product };
  if (kind === 3) return { text: `(${left.text})${gap}(${right.text})`, ...product };
  if (kind === 4) return { text: `-${gap}${a}`, top: -left.top, bottom: left.bottom, atom: false };
  if (kind === 5) {
    const times = randomInteger(random, 1, 3);
    const power = pick(random, [`^${times}`, `^{${gap}${times}}`]);
    return {
      text: `(${left.text})${power}`,
      top: left.top ** BigInt(times),
      bottom: left.bottom ** BigInt(times),
      atom: false,
    };
  }
  if (right.top === 0n) return left;
  if (kind === 6) return { text: `${a}${gap}/${gap}${b}`, ...quotient, atom: false };
  const command = pick(random, ["\\frac", "\\dfrac", "\\tfrac"]);
  return { text: `${command}${gap}{${gap}${left.text}}${gap}{${right.text}}`, ...quotient, atom: true };
}

function leaf(random: Random): Part {
  const [whole, small] = [randomInteger(random, 0, 99), randomInteger(random, 2, 9)];
  const part = randomInteger(random, 1, small - 1);
  const kind = random();
  if (kind < 0.7) return { text: String(whole), top: BigInt(whole), bottom: 1n, atom: true };
  if (kind < 0.85) return { text: `${whole}.${small}`, top: BigInt(whole * 10 + small), bottom: 10n, atom: true };
  const mixed = { top: BigInt(whole * small + part), bottom: BigInt(small), atom: false };
  return { text: pick(random, [`${whole}\\frac{${part}}{${small}}`, `${whole} ${part}/${small}`]), ...mixed };
}

function bracketed(random: Random, { text, atom }: Part): string {
  if (atom && random() < 0.8) return text;
  return pick(random, [`(${text})`, `\\left( ${text} \\right)`, `[${text}]`]);
}
