/** Numbers in JSON lines: JSON has no NaN and no infinities, so those travel as the strings "NaN", "Infinity", "-Infinity". */

import { closeSync, openSync, readSync } from "node:fs";
import { StringDecoder } from "node:string_decoder";
import { atPath } from "../system-errors.ts";

/** The lines of a file, read piece by piece. `ended`: false for a last line without a line break. */
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

/** A JSON value in which numbers that are not finite have become strings, and typed arrays plain ones. */
export function toJson(value: unknown): string {
  return JSON.stringify(value, (_key, item: unknown) => {
    if (typeof item === "number" && !Number.isFinite(item)) return String(item);
    if (item instanceof Float32Array) return Array.from(item, shortest);
    if (ArrayBuffer.isView(item) && !(item instanceof DataView)) return Array.from(item as Int32Array);
    return item;
  });
}

/** The shorter of 7 and 9 digits that gives the same 32-bit float: half the length of printing it as a double. */
function shortest(value: number): number {
  const short = Number(value.toPrecision(7));
  return Math.fround(short) === value ? short : Number(value.toPrecision(9));
}

const notFinite: Readonly<Record<string, number>> = {
  NaN: Number.NaN,
  Infinity: Number.POSITIVE_INFINITY,
  "-Infinity": Number.NEGATIVE_INFINITY,
};

/** A number of parsed JSON, as a number or as the string that stands for it. */
export const readNumber = (value: unknown): number =>
  typeof value === "string" && Object.hasOwn(notFinite, value) ? notFinite[value]! : Number(value);

/** The numbers of a parsed JSON object, those written as strings included; everything else is left out. */
export function figuresOf(object: Readonly<Record<string, unknown>>): Record<string, number> {
  const figures: Record<string, number> = {};
  for (const [name, value] of Object.entries(object)) {
    if (typeof value === "number") figures[name] = value;
    else if (typeof value === "string" && Object.hasOwn(notFinite, value)) figures[name] = notFinite[value]!;
  }
  return figures;
}
