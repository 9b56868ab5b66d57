/** JSON lines. JSON has no NaN and no infinities, so they are written as the strings "NaN", "Infinity", "-Infinity". */
import { closeSync, openSync, readSync } from "node:fs";
import { StringDecoder } from "node:string_decoder";
import { own } from "../../own.ts";
import { atPath } from "../../system-errors.ts";

/** Reads a file piece by piece. `ended`: false for a last line without a line break. */
export function* readLines(file: string): Generator<{ text: string; ended: boolean }> {
  const handle = openSync(file, "r");
  try {
    const decoder = new StringDecoder("utf8");
    const buffer = Buffer.alloc(1 << 16);
    let rest = "";
    const read = () => atPath(file, () => readSync(handle, buffer));
    for (let size = read(); size > 0; size = read()) {
      const lines = (rest + decoder.write(buffer.subarray(0, size))).split("\n");
      rest = lines.pop() ?? "";
      for (const text of lines) yield { text, ended: true };
    }
    rest += decoder.end();
    if (rest !== "") yield { text: rest, ended: false };
  } finally {
    closeSync(handle);
  }
}

/** Writes numbers that are not finite as strings, and typed arrays as lists. */
export function toJson(value: unknown): string {
  return JSON.stringify(value, (_key, item: unknown) => {
    if (typeof item === "number" && !Number.isFinite(item)) return String(item);
    if (item instanceof Float32Array) return Array.from(item, shortest);
    if (ArrayBuffer.isView(item) && !(item instanceof DataView)) return Array.from(item as Int32Array);
    return item;
  });
}

/** The shorter of 7 and 9 digits that gives the same 32-bit float: half as long as its digits as a double. */
function shortest(value: number): number {
  const short = Number(value.toPrecision(7));
  return Math.fround(short) === value ? short : Number(value.toPrecision(9));
}

const notFinite: Readonly<Record<string, number>> = {
  NaN: Number.NaN,
  Infinity: Number.POSITIVE_INFINITY,
  "-Infinity": Number.NEGATIVE_INFINITY,
};

/** A number of parsed JSON, written as a number or as a string. */
export const readNumber = (value: unknown): number =>
  (typeof value === "string" ? own(notFinite, value) : undefined) ?? Number(value);

/** The numbers of a parsed JSON object. Everything else is left out. */
export function numbersOf(object: Readonly<Record<string, unknown>>): Record<string, number> {
  const numbers: Record<string, number> = {};
  for (const [name, value] of Object.entries(object)) {
    const number = typeof value === "string" ? own(notFinite, value) : value;
    if (typeof number === "number") numbers[name] = number;
  }
  return numbers;
}
