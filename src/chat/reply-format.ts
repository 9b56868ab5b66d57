/**
 * What a reply format is: how a family of models writes thinking and tool calls. Also the readers that formats share.
 *
 * A mark inside a quoted string is text. So the end of a call is never the first closing mark after its beginning: the call's
 * JSON, Python or elements are read over first (`Skip`), and the closing mark is expected after them.
 */
import { isDeepStrictEqual } from "node:util";
import { memberText, parseJson, type Skipped, skipJson, skipSpace } from "../base/json.ts";
import { isObject } from "../base/values.ts";
import type { ReplyProblem, ToolDefinition } from "./messages.ts";

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
  /** `[start, end)` of each call in the text, also of malformed ones that are complete: marks inside are text. */
  spans: [start: number, end: number][];
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

// Calls between marks.

/** A call, several, or what is wrong with the text. */
export type ReadBody = (body: string, tools: readonly ToolDefinition[]) => WrittenCall | WrittenCall[] | string;

/** Reads over what a call consists of, from the end of its opening mark. */
export type Skip = (text: string, from: number) => Skipped;

/** Calls between two marks. */
export interface CallMarks {
  open: string;
  close: string;
  read: ReadBody;
  skip: Skip;
}

/** Reading over text that turns out not to be a call is repeated for later calls, up to this many times the text's length. */
const rereading = 8;

/**
 * Finds closing marks, in linear time.
 *
 * @returns the index of the mark and whether the call was read over, so that the mark is certain; -1 if there is none
 */
function createEndFinder(text: string) {
  let budget = rereading * text.length;
  return (from: number, { open, close, skip }: Omit<CallMarks, "read">): { end: number; certain: boolean } => {
    const skipped: Skipped = budget > 0 ? skip(text, from) : { state: "other", end: from };
    if (skipped.state === "cut") return { end: -1, certain: true };
    if (skipped.state === "other") {
      budget -= skipped.end - from;
      return { end: text.indexOf(close, from), certain: false };
    }
    const next = skipSpace(text, skipped.end);
    // The next call begins where this one should end.
    if (text.startsWith(open, next)) return { end: -1, certain: true };
    return { end: text.indexOf(close, next), certain: true };
  };
}

/** Any number of calls between two marks, with other text around them. */
export const between =
  (open: string, close: string, read: ReadBody, skip: Skip = skipJson): ReadCalls =>
  (text, tools) => {
    const found = noCalls();
    const content: string[] = [];
    const findEnd = createEndFinder(text);
    let from = 0;
    for (let start = text.indexOf(open); start >= 0; start = text.indexOf(open, from)) {
      content.push(text.slice(from, start));
      const inside = start + open.length;
      const { end, certain } = findEnd(inside, { open, close, skip });
      if (end < 0) {
        // A call without its end lasts until the next call, if its own text is complete, else until the end of the text.
        const skipped = certain ? skip(text, inside) : undefined;
        from = skipped?.state === "whole" ? skipSpace(text, skipped.end) : text.length;
        if (!text.startsWith(open, from)) from = text.length;
        const whole = text.slice(start, from);
        found.problems.push({ kind: "unclosed_tool_call", message: `a tool call has no ${close}`, text: whole });
        if (certain) found.spans.push([start, from]);
        content.push(whole);
        continue;
      }
      from = end + close.length;
      const call = read(text.slice(inside, end), tools);
      if (certain || typeof call !== "string") found.spans.push([start, from]);
      if (typeof call !== "string") found.calls.push(...[call].flat());
      else {
        found.problems.push(malformed(call, text.slice(start, from)));
        content.push(text.slice(start, from));
      }
    }
    found.content = [...content, text.slice(from)].join("");
    return found;
  };

/**
 * Calls inside a section with marks of its own, which are removed. A section that is not closed ends with the text, since some
 * models end the reply after the last call.
 */
export function inSection(open: string, close: string, calls: CallMarks): ReadCalls {
  const read = between(calls.open, calls.close, calls.read, calls.skip);
  return (text, tools) => {
    const found = noCalls();
    const content: string[] = [];
    let from = 0;
    for (let start = text.indexOf(open); start >= 0; start = text.indexOf(open, from)) {
      const inside = start + open.length;
      const after = skipCalls(text, inside, calls);
      const end = after < 0 ? -1 : text.indexOf(close, after);
      const next = end < 0 ? text.length : end + close.length;
      const section = read(text.slice(inside, end < 0 ? undefined : end), tools);
      const isEmpty = section.content.trim() === "" && section.calls.length > 0;
      content.push(text.slice(from, start));
      if (!isEmpty) content.push(open, section.content, end < 0 ? "" : close);
      found.calls.push(...section.calls);
      found.problems.push(...section.problems);
      if (end >= 0 || isEmpty) found.spans.push([start, next]);
      else for (const [first, last] of section.spans) found.spans.push([first + inside, last + inside]);
      if (!isEmpty && section.problems.length === 0) {
        found.problems.push(malformed("it is not a call", text.slice(start, next)));
      }
      from = next;
    }
    found.content = [...content, text.slice(from)].join("");
    return found;
  };
}

/** @returns the end of the calls that follow each other from `from` on; -1 if the last one is not complete */
function skipCalls(text: string, from: number, { open, close, skip }: CallMarks): number {
  let end = from;
  for (;;) {
    const at = skipSpace(text, end);
    if (!text.startsWith(open, at)) return end;
    const skipped = skip(text, at + open.length);
    if (skipped.state === "cut") return -1;
    const closed = text.indexOf(close, skipped.state === "whole" ? skipped.end : at + open.length);
    if (closed < 0) return end;
    end = closed + close.length;
  }
}

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

export const noCalls = (content = ""): WrittenCalls => ({ content, calls: [], problems: [], spans: [] });

export const malformed = (what: string, text: string): ReplyProblem => ({
  kind: "malformed_tool_call",
  message: `a tool call cannot be read: ${what}`,
  text,
});

/** The first problem, or all calls. */
export const allOrProblem = (calls: readonly (WrittenCall | string)[]): WrittenCall[] | string =>
  calls.find((call) => typeof call === "string") ?? calls.filter((call) => typeof call !== "string");

// Calls as JSON.

/** `JSON.parse` accepts nesting that overflows the stack of recursive functions. */
export const deepest = 100;

const isDeeperThan = (value: unknown, levels: number): boolean =>
  typeof value === "object" &&
  value !== null &&
  (levels === 0 || Object.values(value).some((part) => isDeeperThan(part, levels - 1)));

type ArgumentsKey = "arguments" | "parameters";

/**
 * One call from JSON such as `{"name": "add", "arguments": {"a": 1}}`.
 * @returns the problem as a message if it is not a call
 */
export function callFromJson(
  json: string,
  keys: readonly ArgumentsKey[],
  tools: readonly ToolDefinition[],
): WrittenCall | string {
  const read = readJson(json);
  return typeof read === "string" ? read : callFromValue(read.value, keys, json, tools);
}

/** The value of a JSON text, or what is wrong with the text. */
export function readJson(json: string): { value: unknown } | string {
  try {
    return { value: parseJson(json) };
  } catch (error) {
    return `it is not JSON: ${error instanceof Error ? error.message : error}`;
  }
}

/**
 * @param written the JSON text of the value, if available
 * @param tools a call without arguments counts only for a tool that requires none
 */
export function callFromValue(
  value: unknown,
  keys: readonly ArgumentsKey[],
  written = "",
  tools: readonly ToolDefinition[] = [],
): WrittenCall | string {
  if (!isObject(value)) return "it is not a JSON object";
  const { name, id } = value;
  const key = keys.find((each) => value[each] !== undefined) ?? keys[0] ?? "arguments";
  const given = value[key];
  if (typeof name !== "string" || name === "") return 'it has no "name"';
  const isMissing = given === undefined || given === null || given === "";
  if (isMissing && !needsNoArguments(tools, name)) {
    return given === undefined ? `it has no "${key}"` : `its "${key}" are not a JSON object`;
  }
  // Some models write the arguments as a string that holds the JSON.
  const parsed = isMissing ? {} : typeof given === "string" ? parsedOrUndefined(given) : given;
  if (!isObject(parsed)) return `its "${key}" are not a JSON object`;
  if (isDeeperThan(parsed, deepest)) return `its "${key}" are nested more than ${deepest} levels deep`;
  const text = isMissing ? undefined : typeof given === "string" ? given : memberTextOf(written, key);
  const exact = text !== undefined && isDeepStrictEqual(parsedOrUndefined(text), parsed);
  const writtenId = typeof id === "string" && id !== "" ? { writtenId: id } : {};
  return { name, arguments: parsed, argumentsText: exact ? text : JSON.stringify(parsed), ...writtenId };
}

/** A call whose name and arguments are separate texts. Without any text, it has no arguments. */
export function callOfParts(name: string, json: string, tools: readonly ToolDefinition[]): WrittenCall | string {
  if (json.trim() === "" && needsNoArguments(tools, name)) return callFromValue({ name, arguments: {} }, ["arguments"]);
  const read = readJson(json);
  if (typeof read === "string") return read;
  return callFromValue({ name, arguments: read.value }, ["arguments"], `{"arguments":${json}}`, tools);
}

/** Whether `{}` are valid arguments of the offered tool. */
function needsNoArguments(tools: readonly ToolDefinition[], name: string): boolean {
  const tool = tools.find((each) => each.name === name);
  if (tool === undefined) return false;
  const { required } = tool.parameters ?? {};
  return !Array.isArray(required) || required.length === 0;
}

const memberTextOf = (object: string, key: string) => (object === "" ? undefined : memberText(object, key));

function parsedOrUndefined(json: string): unknown {
  try {
    return parseJson(json);
  } catch {
    return undefined;
  }
}

/**
 * JSON values one after the other, for formats without an end mark.
 *
 * @param separator optional between two values
 * @returns the values, where the text that is no longer JSON begins, and the problem with it
 */
export function readJsonValues(
  text: string,
  from: number,
  separator: string,
): { values: { value: unknown; text: string }[]; end: number; problem?: string } {
  const values: { value: unknown; text: string }[] = [];
  let end = skipSpace(text, from);
  while (end < text.length) {
    const skipped = skipJson(text, end);
    const written = text.slice(end, skipped.state === "whole" ? skipped.end : undefined);
    const read = readJson(written);
    if (typeof read === "string") return { values, end, problem: read };
    values.push({ value: read.value, text: written });
    end = skipSpace(text, skipped.end);
    if (text.startsWith(separator, end)) end = skipSpace(text, end + separator.length);
  }
  return { values, end };
}

/** Reads over what `readJsonValues` reads. */
export const skipJsonValues: Skip = (text, from) => {
  let skipped = skipJson(text, from);
  while (skipped.state === "whole") {
    const next = skipSpace(text, skipped.end);
    if (text.charAt(next) !== "{") return skipped;
    skipped = skipJson(text, next);
  }
  return skipped;
};

// Elements such as `<function=add><parameter=a>1</parameter></function>`, whose values cannot contain their own closing mark.

/** An opening text that ends in a name: `before` + name + `after`. */
export interface NamedTag {
  before: string;
  after: string;
  close: string;
}

interface ReadElement extends Skipped {
  name: string;
  parameters: [name: string, text: string][];
  problem: string;
}

/** One element with parameters and nothing else in it but white space. */
export function readElement(text: string, from: number, element: NamedTag, parameter: NamedTag): ReadElement {
  const parameters: [string, string][] = [];
  let name = "";
  let at = skipSpace(text, from);
  const result = (state: Skipped["state"], end: number, problem = ""): ReadElement => ({
    ...{ state, end, name, parameters, problem },
  });
  const isCut = (mark: string) => mark.startsWith(text.slice(at));
  if (!text.startsWith(element.before, at)) {
    const problem = `${JSON.stringify(text.slice(at, at + 40).trim())} is outside of ${element.before}`;
    return result(isCut(element.before) ? "cut" : "other", at, problem);
  }
  const nameEnd = text.indexOf(element.after, at);
  if (nameEnd < 0) return result("cut", text.length, `${element.before} is not closed`);
  name = text.slice(at + element.before.length, nameEnd).trim();
  at = skipSpace(text, nameEnd + element.after.length);
  while (text.startsWith(parameter.before, at)) {
    const keyEnd = text.indexOf(parameter.after, at);
    if (keyEnd < 0) return result("cut", text.length, `${parameter.before} is not closed`);
    const start = keyEnd + parameter.after.length;
    const end = text.indexOf(parameter.close, start);
    if (end < 0) return result("cut", text.length, `${parameter.close} is missing`);
    parameters.push([text.slice(at + parameter.before.length, keyEnd).trim(), text.slice(start, end)]);
    at = skipSpace(text, end + parameter.close.length);
  }
  if (text.startsWith(element.close, at)) return result("whole", at + element.close.length);
  if (isCut(parameter.before) || isCut(element.close)) return result("cut", text.length, `${element.close} is missing`);
  return result("other", at, `${JSON.stringify(text.slice(at, at + 40).trim())} is outside of ${parameter.before}`);
}

/** Templates put values on lines of their own. */
export const withoutLineEnds = (text: string) => text.replace(/^\n/, "").replace(/\n$/, "");
