/** JSON lines. JSON has no NaN and no infinities, so they are written as the strings "NaN", "Infinity", "-Infinity". */
import { z } from "zod";
import { own } from "../../own.ts";

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

/** A number as `toJson` writes it. */
export const jsonNumber = z.union([z.number(), z.enum(["NaN", "Infinity", "-Infinity"]).transform(readNumber)]);

/** An id, a role, the name of a metric: short enough to be repeated in many rows. */
export const name = z.string().max(1000);

const deepest = 100;

/** Whether a value can be written as JSON again without exhausting the stack. */
export function isShallow(value: unknown, levels = deepest): boolean {
  if (typeof value !== "object" || value === null) return true;
  return levels > 0 && Object.values(value).every((inner) => isShallow(inner, levels - 1));
}

/**
 * @param json a line, or the value that it contains
 * @throws Error with a clause about what is wrong
 */
export function parseLine<Output>(schema: z.ZodType<Output>, json: unknown): Output {
  const parsed = schema.safeParse(typeof json === "string" ? parseJson(json) : json);
  if (parsed.success) return parsed.data;
  const { path = [], message = "" } = parsed.error.issues[0] ?? {};
  const what = message.replace(/^Invalid input: /, "");
  throw new Error(path.length === 0 ? what : `"${path.join(".").slice(0, 200)}": ${what}`);
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("it is not JSON");
  }
}
