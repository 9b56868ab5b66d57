/**
 * The JSON of a run folder: lines with numbers that JSON lacks ("NaN", "Infinity", "-Infinity"), read by position from growing files, and
 * the packed values and texts of tokens.
 */
import { readSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { HoneError, readable, UserError } from "../base/errors.ts";
import { formatBytes, type OpenFile, withInside } from "../base/files.ts";
import { ownValue } from "../base/values.ts";
import { incrementalDecoder, openTokenizer } from "../chat/tokenizer.ts";
import type { Trajectory } from "../trajectories/types.ts";

// Values of a line.

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
  (typeof value === "string" ? ownValue(notFinite, value) : undefined) ?? Number(value);

/** The numbers of a parsed JSON object. Everything else is left out. */
export function numbersOf(object: Readonly<Record<string, unknown>>): Record<string, number> {
  const numbers: Record<string, number> = {};
  for (const [name, value] of Object.entries(object)) {
    const number = typeof value === "string" ? ownValue(notFinite, value) : value;
    if (typeof number === "number") numbers[name] = number;
  }
  return numbers;
}

/** A number as `toJson` writes it. */
export const jsonNumber: z.ZodType<number> = z.union([
  z.number(),
  z.enum(["NaN", "Infinity", "-Infinity"]).transform(readNumber),
]);

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

// Reads the lines of a growing file, with their positions. A line that is too long is skipped without keeping it in memory.

export interface PlacedLine {
  /** Bytes from the start of the file, and of the line without its break. */
  offset: number;
  length: number;
  /** Where the next line begins. */
  next: number;
  /** Undefined if the line is too long. */
  text: string | undefined;
  /** False for a last line without a line break. */
  ended: boolean;
}

/** The most bytes of a line of events.jsonl or metrics.jsonl, and of an episode. */
export const maxLineBytes = 1 << 22;
export const maxEpisodeBytes = 1 << 26;

const pieceBytes = 1 << 18;
/** So many bytes without a line break count as a line, so that a reader can pause. */
const maxSkipped = 1 << 28;

/**
 * @param offset the start of a line
 * @param max the most bytes of a line
 */
export function* linesFrom(
  { handle }: OpenFile,
  { offset = 0, end = Number.POSITIVE_INFINITY, max = maxLineBytes } = {},
): Generator<PlacedLine> {
  let start = offset;
  let length = 0;
  /** The pieces of an incomplete line; empty if it is too long. */
  let kept: Buffer[] = [];

  function take(piece: Buffer): void {
    length += piece.length;
    if (length > max) kept = [];
    else kept.push(piece);
  }
  function finish(ended: boolean): PlacedLine {
    const text = length > max ? undefined : Buffer.concat(kept).toString("utf8");
    const line = { offset: start, length, next: start + length + Number(ended), text, ended };
    start = line.next;
    length = 0;
    kept = [];
    return line;
  }

  for (;;) {
    const piece = Buffer.allocUnsafe(Math.min(pieceBytes, Math.max(0, end - start - length)));
    const size = readSync(handle, piece, 0, piece.length, start + length);
    if (size === 0) break;
    let from = 0;
    for (let at = piece.indexOf(10); at >= 0 && at < size; at = piece.indexOf(10, from)) {
      take(piece.subarray(from, at));
      yield finish(true);
      from = at + 1;
    }
    if (from < size) take(piece.subarray(from, size));
    if (length > maxSkipped) yield finish(false);
  }
  if (length > 0) yield finish(false);
}

/** The same without a last line that is still being written. */
export function* completeLines(...given: Parameters<typeof linesFrom>): Generator<PlacedLine> {
  for (const line of linesFrom(...given)) if (line.ended || line.text === undefined) yield line;
}

export const tooLong = (bytes: number, max = maxLineBytes) =>
  `it has ${formatBytes(bytes)}; at most ${formatBytes(max)} are read`;

/** @throws Error if the file has become shorter */
export function readAt({ handle }: OpenFile, offset: number, length: number): string {
  const bytes = Buffer.alloc(length);
  for (let at = 0; at < length; ) {
    const size = readSync(handle, bytes, at, length - at, offset + at);
    if (size === 0) throw new Error("the file has become shorter");
    at += size;
  }
  return bytes.toString("utf8");
}

// Values of tokens in an episode's file: a number if all are equal, else little-endian 32-bit floats in base64.

export type PackedValues = number | string;

/** What an update computed for the tokens of a step, `[T]` each; absent: it did not. NaN: not for this token. */
export interface TokenValues {
  /** 1: trained on, 0: rejected. */
  mask: PackedValues;
  /** As the loss used them. */
  advantage: PackedValues | undefined;
  /** Log-probabilities of the trainer at its first evaluation, in nats. */
  logprobs: PackedValues | undefined;
  /** Probability at the last evaluation over the one that the loss compares with. */
  ratio: PackedValues | undefined;
  /** 1: the policy term has no gradient at this token, although its advantage is not 0. */
  clipped: PackedValues | undefined;
  /** Entropy of the trainer's distribution, in nats. */
  entropy: PackedValues | undefined;
  /** Log-probabilities of the reference, in nats. */
  reference: PackedValues | undefined;
  /** Log-probabilities of the teacher, in nats. */
  teacher?: PackedValues | undefined;
  /** The teacher's most likely token. */
  choice?: PackedValues | undefined;
}

/** By trajectory that was trained on: one for each of its steps. */
export type TokenValuesByTrajectory = ReadonlyMap<Trajectory, readonly (TokenValues | null)[]>;

/** Undefined if none is known. */
export function packValues(values: Float32Array): PackedValues | undefined {
  const [first] = values;
  if (first === undefined || values.every(Number.isNaN)) return undefined;
  if (Number.isFinite(first) && values.every((value) => value === first)) return first;
  return Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString("base64");
}

/**
 * @param length number of tokens
 * @returns undefined if absent, or of another length
 */
export function unpackValues(packed: PackedValues | undefined, length: number): Float32Array | undefined {
  if (packed === undefined) return undefined;
  if (typeof packed === "number") return new Float32Array(length).fill(packed);
  const bytes = new Uint8Array(Buffer.from(packed, "base64"));
  return bytes.length === length * 4 ? new Float32Array(bytes.buffer) : undefined;
}

// The texts of tokens, decoded with the tokenizer in the run folder.

/** One text per token; joined, they are the decoded text. */
export type Pieces = (tokens: Iterable<number>) => string[];

/** Decodes with the tokenizer in the run folder; undefined if it has none, or it cannot be read. */
export function openPieces(run: string): Pieces | undefined {
  try {
    for (const file of ["tokenizer.json", "tokenizer_config.json"]) withInside(run, `tokenizer/${file}`, requireSmall);
    const tokenizer = openTokenizer(join(run, "tokenizer"));
    return (tokens) => {
      const decoder = incrementalDecoder((ids) => tokenizer.decode(ids));
      const pieces = Array.from(tokens, (token) => decoder.push(token));
      const rest = decoder.end();
      if (pieces.length > 0) pieces[pieces.length - 1] += rest;
      return pieces;
    };
  } catch (error) {
    if (readable(error) instanceof HoneError) return undefined;
    throw error;
  }
}

/** Tokenizers of large vocabularies have 35 MB. */
const maxTokenizerBytes = 1 << 28;

function requireSmall({ stat }: OpenFile): void {
  if (stat.size > maxTokenizerBytes) throw new UserError(`the tokenizer has ${formatBytes(stat.size)}`);
}
