import { isObject } from "../../is-object.ts";

/** Whether two JSON texts have the same value. Text that is not JSON, such as NaN, never has. */
export function sameJson(left: string, right: string): boolean {
  try {
    return same(parse(left), parse(right));
  } catch {
    return false;
  }
}

/** Integers beyond the precision of a double are kept as text. */
function parse(text: string): unknown {
  const value: unknown = JSON.parse(text);
  if (!/\d{16}/.test(text)) return value;
  return JSON.parse(
    text.replace(token, (all, digits?: string) =>
      digits && unsafe(digits) ? `{${JSON.stringify(key)}:"${digits}"}` : all,
    ),
  );
}

const key = "\u0000integer";
/** A string, or a whole integer. */
const token = /"[^"\\]*(?:\\.[^"\\]*)*"|(?<![\w.+-])(-?\d+)(?![\d.eE])/g;
const unsafe = (digits: string) => !Number.isSafeInteger(Number(digits));

/** Of an integer that was kept as text, or a double: 22! is written as 1.1240007277776077e+21. */
function integerOf(value: unknown): bigint | undefined {
  if (typeof value === "number") return Number.isInteger(value) ? BigInt(value) : undefined;
  const digits = isObject(value) ? value[key] : undefined;
  return typeof digits === "string" ? BigInt(digits) : undefined;
}

function same(left: unknown, right: unknown): boolean {
  if (left === right) return true;
  const [one, other] = [integerOf(left), integerOf(right)];
  if (one !== undefined && other !== undefined) return one === other;
  if (typeof left !== "object" || typeof right !== "object" || left === null || right === null) return false;
  if (Array.isArray(left) !== Array.isArray(right)) return false;
  const [keys, others] = [Object.keys(left), Object.keys(right)];
  return (
    keys.length === others.length &&
    keys.every(
      (key) => Object.hasOwn(right, key) && same(left[key as keyof typeof left], right[key as keyof typeof right]),
    )
  );
}
