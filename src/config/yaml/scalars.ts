/**
 * Reads plain YAML scalars like Python (YAML 1.1, with OmegaConf's floats such as `1e-5`), and formats values like
 * Python. Hydra's files rely on these rules, so `off` is false and `1:30` is 90.
 */
import type { ValueNode } from "../tree/node.ts";

const booleans = new Map(
  ["yes", "true", "on"]
    .map((name): [string, boolean] => [name, true])
    .concat(["no", "false", "off"].map((name): [string, boolean] => [name, false])),
);
const booleanCase = /^(?:[a-z]+|[A-Z][a-z]*|[A-Z]+)$/;
const integer = /^[-+]?(?:0b[01_]+|0x[\da-fA-F_]+|0[0-7_]+|0|[1-9][\d_]*(?::[0-5]?\d)*)$/;
const float = new RegExp(
  `^(?:${[
    /[-+]?\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?/,
    /[-+]?\d+(?:_\d+)*[eE][-+]?\d+/,
    /\.\d[\d_]*(?:[eE][-+]\d+)?/,
    /[-+]?\d[\d_]*(?::[0-5]?\d)+\.[\d_]*/,
    /[-+]?\.(?:inf|Inf|INF)/,
    /\.(?:nan|NaN|NAN)/,
  ]
    .map(({ source }) => source)
    .join("|")})$`,
);

/** A plain (unquoted) scalar's value. Integers beyond 2^53 lose digits, as JavaScript's numbers do. */
export function readScalar(text: string): string | number | boolean | null {
  if (/^(?:|~|null|Null|NULL)$/.test(text)) return null;
  if (booleanCase.test(text)) {
    const boolean = booleans.get(text.toLowerCase());
    if (boolean !== undefined) return boolean;
  }
  if (integer.test(text)) return readInteger(text.replaceAll("_", ""));
  if (float.test(text)) return readFloat(text.replaceAll("_", "").toLowerCase());
  return text;
}

function readInteger(text: string): number {
  const sign = text.startsWith("-") ? -1 : 1;
  const digits = text.replace(/^[-+]/, "");
  const octal = /^0\d/.test(digits);
  const value = digits.includes(":") ? sexagesimal(digits) : octal ? Number.parseInt(digits, 8) : Number(digits);
  return value === 0 ? 0 : sign * value;
}

function readFloat(text: string): number {
  const sign = text.startsWith("-") ? -1 : 1;
  const digits = text.replace(/^[-+]/, "");
  if (digits === ".inf") return sign * Number.POSITIVE_INFINITY;
  if (digits === ".nan") return Number.NaN;
  return sign * (digits.includes(":") ? sexagesimal(digits) : Number(digits));
}

const sexagesimal = (digits: string) => digits.split(":").reduce((sum, part) => sum * 60 + Number(part), 0);

/** Whether a number was written as a float: JavaScript itself does not distinguish 1.0 from 1. */
export function isFloat({ value, text }: ValueNode): boolean {
  if (typeof value !== "number") return false;
  if (!Number.isInteger(value)) return true;
  return text !== undefined && isFloatText(text);
}

export const isFloatText = (text: string) => /[.eE]/.test(text) && !/^[-+]?0x/.test(text);

/** A value as Python's `str()` spells it, which is what Hydra puts into text: `True`, `None`, `1e-05`, `1.0`. */
export function pythonText(node: ValueNode): string {
  const { value } = node;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number") return isFloat(node) ? pythonFloat(value) : String(BigInt(value));
  return String(value);
}

/** A float in the spelling that Python's `repr()` gives it. */
export function pythonFloat(value: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return Object.is(value, -0) ? "-0.0" : "0.0";
  const [mantissa, exponentText] = value.toExponential().split("e") as [string, string];
  const exponent = Number(exponentText);
  if (exponent >= -4 && exponent < 16) {
    const digits = String(value).includes("e")
      ? value.toFixed(mantissa.replace(/\D/g, "").length - 1 - exponent)
      : String(value);
    return digits.includes(".") ? digits : `${digits}.0`;
  }
  return `${mantissa}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
}
