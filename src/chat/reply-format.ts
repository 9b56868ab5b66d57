/** Parses a sequence of JSON values, for formats without an end mark. */
import { isDeepStrictEqual } from "node:util";
import { isObject } from "../base/values.ts";
import type { ReplyProblem, ToolDefinition } from "./messages.ts";

/**
 * @param separator optional between two values
 * @returns the values up to the first text that is not JSON, that text, and the problem with it
 */
export function readJsonValues(
  whole: string,
  separator: string,
): { values: { value: unknown; text: string }[]; rest: string; problem?: string } {
  const values: { value: unknown; text: string }[] = [];
  let rest = whole.trim();
  while (rest !== "") {
    const end = endOfValue(rest);
    const text = rest.slice(0, end);
    try {
      values.push({ value: JSON.parse(text), text });
    } catch (error) {
      return { values, rest, problem: `it is not JSON: ${error instanceof Error ? error.message : error}` };
    }
    rest = rest.slice(end).trimStart();
    if (rest.startsWith(separator)) rest = rest.slice(separator.length).trimStart();
  }
  return { values, rest };
}

/** The text of a key's value in an object's text. Uses the first occurrence of the key. */
function writtenValue(object: string, key: string): string | undefined {
  const found = new RegExp(`"${key}"\\s*:\\s*`).exec(object);
  if (found === null) return undefined;
  const rest = object.slice(found.index + found[0].length);
  return rest.slice(0, endOfValue(rest));
}

/** The end of the object or list at the start of the text; the text's end if it is not closed. */
export function endOfValue(text: string): number {
  let depth = 0;
  let quoted = false;
  for (let index = 0; index < text.length; index++) {
    const character = text.charAt(index);
    if (quoted) {
      if (character === "\\") index++;
      else if (character === '"') quoted = false;
    } else if (character === '"') quoted = true;
    else if (character === "{" || character === "[") depth++;
    else if ((character === "}" || character === "]") && --depth <= 0) return index + 1;
  }
  return text.length;
}

// A reply format: how a family of models writes thinking and tool calls. Also what the formats share.

/** A call as the model wrote it. Its id is assigned later. */
export interface WrittenCall {
  name: string;
  arguments: Record<string, unknown>;
  argumentsText: string;
  /** The id that the model wrote, if its format has ids. */
  writtenId?: string;
}

export interface WrittenCalls {
  /** The text without the calls. Malformed calls stay in it. */
  content: string;
  calls: WrittenCall[];
  problems: ReplyProblem[];
}

/**
 * Extracts the calls from a reply's text without its thinking. Never throws, and takes linear time.
 *
 * @param tools formats that write arguments without types need the schemas of the offered tools
 */
export type ReadCalls = (text: string, tools: readonly ToolDefinition[]) => WrittenCalls;

export interface CallFormat {
  read: ReadCalls;
  /** Texts with which a call begins. While a reply is streamed, the text before the first one is certain. */
  starts: readonly string[];
}

/** The texts around the thinking. */
export interface ThinkingMarks {
  open: string;
  close: string;
}

/** A reply's parts. The text of tool calls is still in the content. */
export interface SplitReply {
  reasoning?: string | undefined;
  content: string;
  problems: ReplyProblem[];
}

export interface ReplyFormat {
  /** Undefined if the model does not think. */
  thinking?: ThinkingMarks | undefined;
  /** Undefined if the model does not call tools. */
  calls?: CallFormat | undefined;
  /** Replaces the split at the thinking marks, for replies of several messages. */
  split?: (text: string) => SplitReply;
  /** The text before the answer, if the answer has a header of its own. */
  answer?: string;
  /** Tokens that end a reply, besides the one that the template writes after it. */
  ends?: readonly string[];
  /** What the template writes in earlier turns where the model writes one of `ends`. */
  writtenEnds?: readonly string[];
  /** Those of `ends` that are also the header of the next turn, so that they are not written twice. */
  opensNext?: readonly string[];
  /**
   * The id of a call as the template expects it, if the model did not write one.
   *
   * @param index number of calls before it in the conversation
   */
  callId?: (id: string, name: string, index: number) => string;
}

/** The thinking of most models. */
export const thinkTags: ThinkingMarks = { open: "<think>", close: "</think>" };

/** A call, several, or what is wrong with the text. */
export type ReadBody = (body: string, tools: readonly ToolDefinition[]) => WrittenCall | WrittenCall[] | string;

/** Calls between two marks, any number of them. */
export const between =
  (open: string, close: string, readBody: ReadBody): ReadCalls =>
  (text, tools) => {
    const content: string[] = [];
    const calls: WrittenCall[] = [];
    const problems: ReplyProblem[] = [];
    let from = 0;
    for (let start = text.indexOf(open); start >= 0; start = text.indexOf(open, from)) {
      content.push(text.slice(from, start));
      const end = text.indexOf(close, start + open.length);
      const whole = text.slice(start, end < 0 ? undefined : end + close.length);
      from = start + whole.length;
      const found = end < 0 ? undefined : readBody(text.slice(start + open.length, end), tools);
      if (found === undefined) {
        problems.push({ kind: "unclosed_tool_call", message: `a tool call has no ${close}`, text: whole });
      } else if (typeof found === "string") problems.push(malformed(found, whole));
      else calls.push(...[found].flat());
      if (found === undefined || typeof found === "string") content.push(whole);
    }
    content.push(text.slice(from));
    return { content: content.join(""), calls, problems };
  };

/**
 * Calls inside a section with marks of its own, which are removed. A section that is not closed ends with the text, since some
 * models end the reply after the last call.
 */
export const inSection =
  (open: string, close: string, read: ReadCalls): ReadCalls =>
  (text, tools) => {
    const found: WrittenCalls = { content: "", calls: [], problems: [] };
    let from = 0;
    for (let start = text.indexOf(open); start >= 0; start = text.indexOf(open, from)) {
      const end = text.indexOf(close, start + open.length);
      const inside = text.slice(start + open.length, end < 0 ? undefined : end);
      const { content, calls, problems } = read(inside, tools);
      const isEmpty = content.trim() === "" && calls.length > 0;
      const next = end < 0 ? text.length : end + close.length;
      found.content += text.slice(from, start);
      if (!isEmpty) found.content += open + content + text.slice(start + open.length + inside.length, next);
      found.calls.push(...calls);
      found.problems.push(...problems);
      if (!isEmpty && problems.length === 0)
        found.problems.push(malformed("it is not a call", text.slice(start, next)));
      from = next;
    }
    found.content += text.slice(from);
    return found;
  };

/** For models whose own format is not that of the prompt: calls in the first format, else in the second one. */
export const either = (first: CallFormat | undefined, second: CallFormat): CallFormat =>
  first === undefined || first === second
    ? second
    : {
        starts: [...new Set([...first.starts, ...second.starts])],
        read(text, tools) {
          const found = first.read(text, tools);
          return found.calls.length > 0 || found.problems.length > 0 ? found : second.read(text, tools);
        },
      };

/** `JSON.parse` accepts nesting that overflows the stack of recursive functions. */
export const deepest = 100;

const isDeeperThan = (value: unknown, levels: number): boolean =>
  typeof value === "object" &&
  value !== null &&
  (levels === 0 || Object.values(value).some((part) => isDeeperThan(part, levels - 1)));

/**
 * One call from JSON such as `{"name": "add", "arguments": {"a": 1}}`.
 * @returns the problem as a message if it is not a call
 */
export function callFromJson(json: string, ...argumentsKeys: ArgumentsKey[]): WrittenCall | string {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch (error) {
    return notJson(error);
  }
  return callFromValue(value, argumentsKeys, json);
}

export const notJson = (error: unknown) => `it is not JSON: ${error instanceof Error ? error.message : error}`;

type ArgumentsKey = "arguments" | "parameters";

/** @param written the JSON text of the value, if available */
export function callFromValue(value: unknown, keys: readonly ArgumentsKey[], written = ""): WrittenCall | string {
  if (!isObject(value)) return "it is not a JSON object";
  const { name, id } = value;
  const key = keys.find((each) => value[each] !== undefined) ?? keys[0] ?? "arguments";
  const given = value[key];
  if (typeof name !== "string" || name === "") return 'it has no "name"';
  if (given === undefined) return `it has no "${key}"`;
  // Some models write the arguments as a string that holds the JSON.
  const parsed = typeof given === "string" ? parsedOrUndefined(given) : given;
  if (!isObject(parsed)) return `its "${key}" are not a JSON object`;
  if (isDeeperThan(parsed, deepest)) return `its "${key}" are nested more than ${deepest} levels deep`;
  const text = typeof given === "string" ? given : writtenValue(written, key);
  const exact = text !== undefined && isDeepStrictEqual(parsedOrUndefined(text), parsed);
  const writtenId = typeof id === "string" && id !== "" ? { writtenId: id } : {};
  return { name, arguments: parsed, argumentsText: exact ? text : JSON.stringify(parsed), ...writtenId };
}

/** A call whose name and arguments are separate texts. */
export const callOfParts = (name: string, json: string): WrittenCall | string => {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch (error) {
    return notJson(error);
  }
  return callFromValue({ name, arguments: value }, ["arguments"], `"arguments":${json.trim()}`);
};

/** The first problem, or all calls. */
export const allOrProblem = (calls: readonly (WrittenCall | string)[]): WrittenCall[] | string =>
  calls.find((call) => typeof call === "string") ?? calls.filter((call) => typeof call !== "string");

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

// Reads elements such as `<parameter=city>Paris</parameter>` from a text.

/** An opening text that ends in a name: `before` + name + `after`. */
export interface NamedTag {
  before: string;
  after: string;
  close: string;
}

/**
 * The elements that the text consists of, in order, with nothing but white space between them.
 *
 * @returns what is wrong if the text has anything else
 */
export function readTags(text: string, tag: NamedTag): [name: string, content: string][] | string {
  const found: [string, string][] = [];
  let at = 0;
  for (;;) {
    const start = text.indexOf(tag.before, at);
    const skipped = text.slice(at, start < 0 ? undefined : start);
    if (skipped.trim() !== "") return `${JSON.stringify(skipped.trim().slice(0, 40))} is outside of ${tag.before}`;
    if (start < 0) return found;
    const nameEnd = text.indexOf(tag.after, start + tag.before.length);
    if (nameEnd < 0) return `${tag.before} is not closed`;
    const from = nameEnd + tag.after.length;
    const end = text.indexOf(tag.close, from);
    if (end < 0) return `${tag.close} is missing`;
    found.push([text.slice(start + tag.before.length, nameEnd).trim(), text.slice(from, end)]);
    at = end + tag.close.length;
  }
}

/** Templates put values on lines of their own. */
export const withoutLineEnds = (text: string) => text.replace(/^\n/, "").replace(/\n$/, "");
