import { canonical } from "../text/numbers.ts";

/** Compares a program's output with the expected output: ignores trailing blanks, compares numbers by value. */
export function sameOutput(printed: string, expected: string): boolean {
  const [left, right] = [linesOf(printed), linesOf(expected)];
  return left.length === right.length && left.every((line, index) => sameLine(line, right[index] ?? ""));
}

const linesOf = (text: string) =>
  text
    .trimEnd()
    .split("\n")
    .map((line) => line.trimEnd());

function sameLine(left: string, right: string): boolean {
  if (left === right) return true;
  const [words, others] = [left.trim().split(/\s+/), right.trim().split(/\s+/)];
  return words.length === others.length && words.every((word, index) => sameWord(word, others[index] ?? ""));
}

const number = /^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?$/i;
const integer = /^[+-]?\d+$/;

function sameWord(left: string, right: string): boolean {
  if (left === right) return true;
  if (!number.test(left) || !number.test(right) || (integer.test(left) && integer.test(right))) return false;
  // Different large integers may be equal as floating point.
  const exact = [left, right].map((word) => canonical(word.replace("+", "")));
  if (exact.every((digits) => integer.test(digits))) return exact[0] === exact[1];
  const [a, b] = [Number(left), Number(right)];
  return Math.abs(a - b) <= 1e-9 * Math.max(1, Math.abs(a), Math.abs(b));
}
