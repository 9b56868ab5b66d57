/** The interface of tool-call formats, and what they share. */
import { isDeepStrictEqual } from "node:util";
import type { ReplyProblem } from "../messages.ts";
import { writtenValue } from "./json-values.ts";

/** A call without an id, which is assigned later. */
export interface WrittenCall {
  name: string;
  arguments: Record<string, unknown>;
  argumentsText: string;
}

export interface WrittenCalls {
  /** The text without the calls. Malformed calls stay in it. */
  content: string;
  calls: WrittenCall[];
  problems: ReplyProblem[];
}

/** Extracts the calls from a reply's text without its thinking. Never throws. */
export type ToolCallFormat = (text: string) => WrittenCalls;

/** `JSON.parse` accepts nesting that overflows the stack of recursive functions. */
const deepest = 100;

const isDeeperThan = (value: unknown, levels: number): boolean =>
  typeof value === "object" &&
  value !== null &&
  (levels === 0 || Object.values(value).some((part) => isDeeperThan(part, levels - 1)));

/**
 * One call from JSON such as `{"name": "add", "arguments": {"a": 1}}`.
 * @returns the problem as a message if it is not a call
 */
export function callFromJson(json: string, argumentsKey: "arguments" | "parameters"): WrittenCall | string {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch (error) {
    return `it is not JSON: ${error instanceof Error ? error.message : error}`;
  }
  return callFromValue(value, argumentsKey, json);
}

/** @param written the JSON text of the value, if available */
export function callFromValue(
  value: unknown,
  argumentsKey: "arguments" | "parameters",
  written = "",
): WrittenCall | string {
  if (!isObject(value)) return "it is not a JSON object";
  const { name, [argumentsKey]: given } = value;
  if (typeof name !== "string" || name === "") return 'it has no "name"';
  if (given === undefined) return `it has no "${argumentsKey}"`;
  // Some models write the arguments as a string that holds the JSON.
  const parsed = typeof given === "string" ? parsedOrUndefined(given) : given;
  if (!isObject(parsed)) return `its "${argumentsKey}" are not a JSON object`;
  if (isDeeperThan(parsed, deepest)) return `its "${argumentsKey}" are nested more than ${deepest} levels deep`;
  const text = typeof given === "string" ? given : writtenValue(written, argumentsKey);
  const exact = text !== undefined && isDeepStrictEqual(parsedOrUndefined(text), parsed);
  return { name, arguments: parsed, argumentsText: exact ? text : JSON.stringify(parsed) };
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function parsedOrUndefined(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return undefined;
  }
}

export const malformed = (what: string, text: string): ReplyProblem => ({
  kind: "malformed_tool_call",
  message: `a tool call cannot be read: ${what}`,
  text,
});
