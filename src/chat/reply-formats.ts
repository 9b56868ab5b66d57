/**
 * The reply formats of model families, by the name that `rollout_engine.renderer_name` gives them: what each one's thinking and
 * tool calls look like, and the text of a template by which it is detected. The table is at the end.
 */
import { itemTexts, parseJson, type Skipped, skipJson, skipSpace } from "../base/json.ts";
import { isObject } from "../base/values.ts";
import { callFromTexts } from "./argument-types.ts";
import { harmony } from "./harmony.ts";
import type { ToolDefinition } from "./messages.ts";
import { lfm2, llama4, olmo3 } from "./python-calls.ts";
import {
  allOrProblem,
  between,
  type CallFormat,
  callFromJson,
  callFromValue,
  callOfParts,
  deepest,
  inSection,
  malformed,
  type NamedTag,
  noCalls,
  type ReadBody,
  type ReadCalls,
  type ReplyFormat,
  readElement,
  readJson,
  readJsonValues,
  type Skip,
  skipJsonValues,
  type ThinkingMarks,
  thinkTags,
  type WrittenCall,
  withoutLineEnds,
} from "./reply-format.ts";

// JSON between marks.

/**
 * Hermes, Qwen2.5, Qwen3, SmolLM3, Granite 4: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them.
 *
 * @example
 * hermes.read('Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', []);
 * // content "Let me see.", one call
 */
export const hermes: CallFormat = {
  starts: ["<tool_call>"],
  read: between("<tool_call>", "</tool_call>", (body, tools) => callFromJson(body, ["arguments"], tools)),
};

/** A list of calls in JSON, each `{"name": ..., "arguments": {...}}`, or one of them. */
const readList: ReadBody = (body, tools) => {
  const read = readJson(body);
  if (typeof read === "string") return read;
  const { value } = read;
  if (!Array.isArray(value) && !isObject(value)) return "it is not a list";
  const texts = Array.isArray(value) ? itemTexts(body) : [body];
  return allOrProblem(texts.map((text) => callFromJson(text, ["arguments", "parameters"], tools)));
};

/** Nemotron Nano 2: `<TOOLCALL>[...]</TOOLCALL>`. */
const nemotron: CallFormat = {
  starts: ["<TOOLCALL>"],
  read: between("<TOOLCALL>", "</TOOLCALL>", readList),
};

/** MiniMax M1: `<tool_calls>` and one call in JSON per line. */
const minimaxM1: CallFormat = {
  starts: ["<tool_calls>"],
  read: between(
    "<tool_calls>",
    "</tool_calls>",
    (body, tools) => {
      const { values, problem } = readJsonValues(body, 0, "\n");
      return problem ?? allOrProblem(values.map(({ text }) => callFromJson(text, ["arguments"], tools)));
    },
    skipJsonValues,
  ),
};

/** Lists, each after a mark and, in some models, before another mark. Otherwise a list ends where its JSON ends. */
const afterMark =
  (open: string, close: string): ReadCalls =>
  (text, tools) => {
    const found = noCalls();
    let from = 0;
    for (let at = text.indexOf(open); at >= 0; at = text.indexOf(open, from)) {
      const start = at + open.length;
      const { state, end } = skipJson(text, start);
      // Text that is not JSON lasts until the next call.
      const next = state === "whole" ? end : text.indexOf(open, start);
      const last = next < 0 ? text.length : next;
      const calls = readList(text.slice(start, last), tools);
      const closed = state === "whole" ? skipSpace(text, last) : text.indexOf(close, start);
      found.content += text.slice(from, at);
      from = text.startsWith(close, closed) ? closed + close.length : last;
      if (typeof calls !== "string") found.calls.push(...[calls].flat());
      else {
        found.problems.push(malformed(calls, text.slice(at, from)));
        found.content += text.slice(at, from);
      }
      if (state !== "other") found.spans.push([at, from]);
    }
    found.content += text.slice(from);
    return found;
  };

/** Phi-4-mini and Granite 3: `<|tool_call|>[...]`, closed by `<|/tool_call|>` in Phi. */
const phi4: CallFormat = { starts: ["<|tool_call|>"], read: afterMark("<|tool_call|>", "<|/tool_call|>") };

const graniteTag = afterMark("<tool_call>", "</tool_call>");

/** Granite 3.1 to 3.3: `<tool_call>[...]`, or as Granite 3.0. The first mark says which. */
const granite: CallFormat = {
  starts: ["<|tool_call|>", "<tool_call>"],
  read(text, tools) {
    const [bar, tag] = [text.indexOf("<|tool_call|>"), text.indexOf("<tool_call>")];
    return bar >= 0 && (tag < 0 || bar < tag) ? phi4.read(text, tools) : graniteTag(text, tools);
  },
};

/**
 * Llama 3: the whole reply is `{"name": ..., "parameters": {...}}`, or several of them separated by semicolons, optionally after
 * `<|python_tag|>`.
 */
export const llama3: CallFormat = {
  starts: ["{", "<|python_tag|>"],
  read(text, tools) {
    const tag = "<|python_tag|>";
    const start = skipSpace(text, 0);
    const tagged = text.startsWith(tag, start);
    const from = tagged ? start + tag.length : start;
    if (!tagged && !text.startsWith("{", from)) return noCalls(text);
    const { values, problem } = readJsonValues(text, from, ";");
    const calls = values.map(({ text: one }) => callFromJson(one, ["parameters", "arguments"], tools));
    const wrong = problem ?? (calls.length === 0 ? "nothing follows" : calls.find((call) => typeof call === "string"));
    // All or nothing, since other JSON may be the answer itself.
    if (wrong === undefined) {
      return { ...noCalls(), calls: calls.filter((call) => typeof call !== "string"), spans: [[0, text.length]] };
    }
    const meant = tagged || /"(name|parameters)"\s*:/.test(text);
    return { ...noCalls(text), problems: meant ? [malformed(wrong, text)] : [] };
  },
};

// A name and JSON between marks.

/** Reads over a header, JSON, and what may follow the JSON. */
const skipHeaded =
  (header: RegExp, tail = /\s*/y): Skip =>
  (text, from) => {
    header.lastIndex = from;
    if (!header.test(text)) return { state: "other", end: from };
    const skipped = skipJson(text, header.lastIndex);
    if (skipped.state !== "whole") return skipped;
    tail.lastIndex = skipped.end;
    return { state: "whole", end: tail.test(text) ? tail.lastIndex : skipped.end };
  };

/**
 * Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, or, since version 11 of its tokenizer, `[TOOL_CALLS]name[ARGS]{...}`
 * each. Text after a call is kept.
 */
export const mistral: CallFormat = {
  starts: ["[TOOL_CALLS]"],
  read(text, tools) {
    const mark = "[TOOL_CALLS]";
    const found = noCalls();
    let from = 0;
    for (let at = text.indexOf(mark); at >= 0; at = text.indexOf(mark, from)) {
      found.content += text.slice(from, at);
      const { calls, end, cut } = readMistral(text, at + mark.length, tools);
      const next = text.indexOf(mark, end);
      from = typeof calls === "string" ? (cut || next < 0 ? text.length : next) : end;
      if (typeof calls !== "string") found.calls.push(...calls);
      else {
        found.problems.push(malformed(calls, text.slice(at, from)));
        found.content += text.slice(at, from);
      }
      if (typeof calls !== "string" || cut) found.spans.push([at, from]);
    }
    found.content += text.slice(from);
    return found;
  },
};

/** @returns the calls or what is wrong, their end, and whether the text ended inside of them */
function readMistral(text: string, from: number, tools: readonly ToolDefinition[]) {
  const header = /\s*([\w.-]+)\s*(?:\[CALL_ID\]([^[]*))?\[ARGS\]/y;
  header.lastIndex = from;
  const [whole, name, id] = header.exec(text) ?? [];
  const start = from + (whole?.length ?? 0);
  const { values, end } = jsonValues(text, start, ",");
  const isText = values.length > 0 && !/[[{"]/.test(text.charAt(end));
  // After a call, the model may go on with text, but half a call is none.
  if (end < text.length && !isText && !text.startsWith("[TOOL_CALLS]", end)) {
    const read = readJson(text.slice(end));
    const problem = typeof read === "string" ? read : "it is not a call";
    return { calls: problem, end, cut: skipJson(text, end).state === "cut" };
  }
  if (values.length > 0) {
    const calls = values.map((written) =>
      name === undefined
        ? readList(written, tools)
        : callFromValue({ name, id, arguments: parsed(written) }, ["arguments"], `{"arguments":${written}}`, tools),
    );
    return { calls: allOrProblem(calls.flat()), end, cut: false };
  }
  const empty = name === undefined ? "nothing follows" : callOfParts(name, "", tools);
  if (typeof empty === "string") return { calls: "nothing follows", end, cut: false };
  return { calls: [id ? { ...empty, writtenId: id } : empty], end, cut: false };
}

const parsed = (json: string) => {
  const read = readJson(json);
  return typeof read === "string" ? undefined : read.value;
};

/** The texts of JSON values, until the text is something else. */
function jsonValues(text: string, from: number, separator: string): { values: string[]; end: number } {
  const values: string[] = [];
  let end = skipSpace(text, from);
  for (;;) {
    const skipped = skipJson(text, end);
    const written = text.slice(end, skipped.end);
    if (skipped.state !== "whole" || typeof readJson(written) === "string") return { values, end };
    values.push(written);
    end = skipSpace(text, skipped.end);
    if (text.startsWith(separator, end)) end = skipSpace(text, end + separator.length);
  }
}

const mistralThinking: ThinkingMarks = { open: "[THINK]", close: "[/THINK]" };

/** Its templates refuse ids of another length. */
const mistralCallId = (id: string, _name: string, index: number) =>
  /^[a-zA-Z0-9]{9}$/.test(id) ? id : `call${index.toString(36).padStart(5, "0")}`;

/**
 * DeepSeek V3 and R1 write `<｜tool▁call▁begin｜>function<｜tool▁sep｜>add` and the arguments as a block of JSON, V3.1 writes
 * `<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}`. Both are in one section.
 */
const deepseek: CallFormat = {
  starts: ["<｜tool▁calls▁begin｜>"],
  read: inSection("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", {
    open: "<｜tool▁call▁begin｜>",
    close: "<｜tool▁call▁end｜>",
    skip: skipHeaded(/[^<{]*<｜tool▁sep｜>(?:[^\n{`]*\n)?\s*(?:```json)?/y, /\s*(?:```)?/y),
    read(body, tools) {
      const separator = "<｜tool▁sep｜>";
      const at = body.indexOf(separator);
      if (at < 0) return `it has no ${separator}`;
      const before = body.slice(0, at).trim();
      const after = body.slice(at + separator.length);
      const fenced = /^([^`{]*)```json/.exec(after);
      if (before !== "function" || fenced === null) return namedCall(before, after, tools);
      const json = after.slice(fenced[0].length).trim();
      return namedCall((fenced[1] ?? "").trim(), json.replace(/```$/, ""), tools);
    },
  }),
};

const namedCall = (name: string, json: string, tools: readonly ToolDefinition[]) =>
  name === "" ? "it has no name" : callOfParts(name, json, tools);

/** Kimi K2: `<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>` in a section. */
const kimiK2: CallFormat = {
  starts: ["<|tool_calls_section_begin|>"],
  read: inSection("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", {
    open: "<|tool_call_begin|>",
    close: "<|tool_call_end|>",
    skip: skipHeaded(/[^<{]*<\|tool_call_argument_begin\|>/y),
    read(body, tools) {
      const separator = "<|tool_call_argument_begin|>";
      const at = body.indexOf(separator);
      if (at < 0) return `it has no ${separator}`;
      const id = body.slice(0, at).trim();
      const name = kimiName(id, tools);
      if (name === undefined) return id === "" ? "it has no name" : `${JSON.stringify(id)} does not name a tool`;
      const call = callOfParts(name, body.slice(at + separator.length), tools);
      return typeof call === "string" ? call : { ...call, writtenId: id };
    },
  }),
};

/**
 * The tool that an id names. `functions.add:0` and `add:0` name any tool. Clients and servers also send the ids back with `_` in
 * place of other characters or without them, and the model repeats such ids: these name only tools that are offered.
 */
function kimiName(id: string, tools: readonly ToolDefinition[]): string | undefined {
  const [, name] = /^(?:functions\.)?(.*?)(?::\d+)?$/s.exec(id) ?? [];
  const isOffered = (each: string | undefined) => tools.some((tool) => tool.name === each);
  if (name === undefined || name === "" || isOffered(name)) return name || undefined;
  if (isOffered(id)) return id;
  const alike = tools.filter((tool) =>
    ["_", "-", ""].some((other) => {
      const written = tool.name.replace(/[^\w-]/g, other);
      const rest = id.startsWith(`functions${other}${written}`)
        ? id.slice(`functions${other}${written}`.length)
        : id.startsWith(written)
          ? id.slice(written.length)
          : undefined;
      return rest !== undefined && /^[_:-]?\d*$/.test(rest);
    }),
  );
  // The longest name, since `add_2` may be the tool add_2 or the third call of add.
  const [first, second] = alike.sort((left, right) => right.name.length - left.name.length);
  if (first !== undefined && first.name.length !== second?.name.length) return first.name;
  return /^(functions\.)?[^:]*[^\d:][^:]*(:\d+)?$/.test(id) ? name : undefined;
}

/** The results of calls refer to these ids, which count the calls of a conversation. */
const kimiCallId = (id: string, name: string, index: number) =>
  /^functions\..+:\d+$/.test(id) ? id : `functions.${name}:${index}`;

// Elements.

/** Calls in elements between two marks. */
const elementsBetween = (open: string, close: string): ReadCalls =>
  between(open, close, readFunction, (text, from) => readElement(text, from, functionTag, parameterTag));

const functionTag: NamedTag = { before: "<function=", after: ">", close: "</function>" };
const parameterTag: NamedTag = { before: "<parameter=", after: ">", close: "</parameter>" };

function readFunction(body: string, tools: readonly ToolDefinition[]): WrittenCall | string {
  const { state, end, name, parameters, problem } = readElement(body, 0, functionTag, parameterTag);
  if (state !== "whole") return problem;
  const rest = body.slice(end).trim();
  if (rest !== "") return `${JSON.stringify(rest.slice(0, 40))} follows the function`;
  const texts = parameters.map(([key, text]) => [key, withoutLineEnds(text)] as const);
  return callFromTexts(name, texts, tools);
}

/** Qwen3-Coder, Qwen3.5, Nemotron 3: `<tool_call><function=add><parameter=a>1</parameter></function></tool_call>`. */
const qwen3Coder: CallFormat = { starts: ["<tool_call>"], read: elementsBetween("<tool_call>", "</tool_call>") };

/** Seed-OSS has the same elements with other marks. */
const seed: CallFormat = {
  starts: ["<seed:tool_call>"],
  read: elementsBetween("<seed:tool_call>", "</seed:tool_call>"),
};

/**
 * `<invoke name="add"><parameter name="a">1</parameter></invoke>` in a section: MiniMax M2, and DeepSeek V3.2 and V4, which write
 * `｜DSML｜` in each tag and say which parameters are strings.
 */
function invocations(prefix: string, section: string): ReadCalls {
  const invoke = { before: `<${prefix}invoke name="`, after: '">', close: `</${prefix}invoke>` };
  const parameter = { before: `<${prefix}parameter name="`, after: ">", close: `</${prefix}parameter>` };
  return inSection(`<${prefix}${section}>`, `</${prefix}${section}>`, {
    open: invoke.before,
    close: invoke.close,
    skip(text, from) {
      const read = readElement(text, from - invoke.before.length, invoke, parameter);
      return read.state === "whole" ? { state: "whole", end: read.end - invoke.close.length } : read;
    },
    read(body, tools) {
      const read = readElement(`${invoke.before}${body}${invoke.close}`, 0, invoke, parameter);
      if (read.state !== "whole") return read.problem;
      // The name of a parameter is read up to `>`: a quotation mark and, in DeepSeek's form, an attribute follow.
      const texts = read.parameters.map(([head, text]) => {
        const quote = head.indexOf('"');
        const isText = /string="(true|false)"/.exec(head.slice(Math.max(quote, 0)))?.[1];
        return [
          quote < 0 ? head : head.slice(0, quote),
          text,
          isText === undefined ? undefined : isText === "true",
        ] as const;
      });
      return callFromTexts(read.name, texts, tools);
    },
  });
}

const minimax: CallFormat = { starts: ["<minimax:tool_call>"], read: invocations("", "minimax:tool_call") };

const dsmlCalls = invocations("｜DSML｜", "tool_calls");
const dsmlFunctionCalls = invocations("｜DSML｜", "function_calls");

const deepseekV32: CallFormat = {
  starts: ["<｜DSML｜"],
  read(text, tools) {
    const [calls, functions] = [text.indexOf("<｜DSML｜tool_calls>"), text.indexOf("<｜DSML｜function_calls>")];
    return calls >= 0 && (functions < 0 || calls < functions) ? dsmlCalls(text, tools) : dsmlFunctionCalls(text, tools);
  },
};

// GLM 4.5 and later: `<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>`.

interface GlmCall extends Skipped {
  name: string;
  texts: [key: string, text: string][];
}

function readGlm(text: string, from: number): GlmCall {
  const head = /\s*([^\s<{]+)\s*(?=<|$)/y;
  const key = /\s*<arg_key>/y;
  head.lastIndex = from;
  const name = head.exec(text)?.[1] ?? "";
  const texts: [string, string][] = [];
  const result = (state: Skipped["state"], end: number): GlmCall => ({ state, end, name, texts });
  if (name === "") return result("other", from);
  let at = head.lastIndex;
  for (;;) {
    key.lastIndex = at;
    if (!key.test(text)) break;
    const keyEnd = text.indexOf("</arg_key>", key.lastIndex);
    if (keyEnd < 0) return result("cut", text.length);
    const start = skipSpace(text, keyEnd + "</arg_key>".length);
    if (!text.startsWith("<arg_value>", start))
      return result("<arg_value>".startsWith(text.slice(start)) ? "cut" : "other", start);
    const end = text.indexOf("</arg_value>", start);
    if (end < 0) return result("cut", text.length);
    texts.push([text.slice(key.lastIndex, keyEnd).trim(), text.slice(start + "<arg_value>".length, end)]);
    at = end + "</arg_value>".length;
  }
  const next = skipSpace(text, at);
  return result(next < text.length ? "whole" : "cut", next);
}

const glm: CallFormat = {
  starts: ["<tool_call>"],
  read: between(
    "<tool_call>",
    "</tool_call>",
    (body, tools) => {
      const { state, end, name, texts } = readGlm(body, 0);
      if (name === "") return `${JSON.stringify(body.trim().slice(0, 40))} is not a name`;
      if (state === "other" || end < body.length) return "a <arg_key> has no value";
      return callFromTexts(name, texts, tools);
    },
    readGlm,
  ),
};

/** Its turns have no end: the model ends a reply with the header of the next turn. */
const glmEnds = ["<|user|>", "<|observation|>"];

// Gemma 4: `<|tool_call>call:add{a:1,city:<|"|>Paris<|"|>}<tool_call|>`, any number of them.

const gemma4: CallFormat = {
  starts: ["<|tool_call>"],
  read: between("<|tool_call>", "<tool_call|>", readGemma, (text, from) => {
    const read = readGemmaCall(text, from);
    return "problem" in read
      ? { state: read.end >= text.length ? "cut" : "other", end: read.end }
      : { state: "whole", end: read.end };
  }),
};

const gemma4Thinking: ThinkingMarks = { open: "<|channel>thought", close: "<channel|>" };

/** After a call, the model ends its reply with the header of the result. */
const gemma4Result = "<|tool_response>";

function readGemma(body: string): WrittenCall | string {
  const read = readGemmaCall(body, 0);
  if ("problem" in read) return read.problem;
  if (body.slice(read.end).trim() !== "") return "text follows the arguments";
  return callFromValue({ name: read.name, arguments: read.value }, ["arguments"]);
}

class NotGemma extends Error {
  readonly at: number;

  constructor(what: string, at: number) {
    super(what);
    this.at = at;
  }
}

type GemmaCall = { name: string; value: unknown; end: number } | { problem: string; end: number };

function readGemmaCall(text: string, from: number): GemmaCall {
  const head = /\s*call:([^{\s]+)\s*/y;
  head.lastIndex = from;
  const name = head.exec(text)?.[1];
  if (name === undefined) return { problem: "it does not begin with call: and a name", end: from };
  try {
    return { name, ...readObject(text, head.lastIndex) };
  } catch (error) {
    if (error instanceof NotGemma)
      return { problem: `${error.message} at character ${error.at - from}`, end: error.at };
    throw error;
  }
}

/** Objects and lists in JSON's syntax, with names without quotation marks and texts between `<|"|>`. */
function readObject(text: string, start: number): { value: unknown; end: number } {
  const quote = '<|"|>';
  let at = start;
  const fail = (what: string, where = at): never => {
    throw new NotGemma(what, where);
  };
  function take(mark: string): boolean {
    while (at < text.length && text.charAt(at).trim() === "") at++;
    if (!text.startsWith(mark, at)) return false;
    at += mark.length;
    return true;
  }
  function until(marks: RegExp): string {
    marks.lastIndex = at;
    const end = marks.exec(text)?.index ?? fail("an end is missing", text.length);
    const found = text.slice(at, end);
    at = end;
    return found;
  }
  function quoted(): string {
    const end = text.indexOf(quote, at);
    if (end < 0) fail("a text is not closed", text.length);
    const found = text.slice(at, end);
    at = end + quote.length;
    return found;
  }
  function value(depth: number): unknown {
    if (depth > deepest) fail(`more than ${deepest} levels`);
    if (take(quote)) return quoted();
    if (take("{")) return object(depth);
    if (take("[")) return list(depth);
    const written = until(/[,}\]]/g).trim();
    try {
      return parseJson(written);
    } catch {
      return written === "" ? fail("a value is missing") : written;
    }
  }
  function object(depth: number): Record<string, unknown> {
    const entries: [string, unknown][] = [];
    while (!take("}")) {
      const key = take(quote) ? quoted() : until(/[:,}]/g).trim();
      if (!take(":")) fail("a name has no value");
      entries.push([key, value(depth + 1)]);
      if (!take(",")) {
        if (!take("}")) fail("} is missing");
        break;
      }
    }
    return Object.fromEntries(entries);
  }
  function list(depth: number): unknown[] {
    const values: unknown[] = [];
    while (!take("]")) {
      values.push(value(depth + 1));
      if (!take(",")) {
        if (!take("]")) fail("] is missing");
        break;
      }
    }
    return values;
  }
  if (!take("{")) fail("{ is missing");
  return { value: object(0), end: at };
}

// The formats by name, and their detection.

interface NamedFormat extends ReplyFormat {
  /** A text of the templates whose models write this format. */
  detectedBy?: string;
}

/** In the order of detection: a template that has the texts of several formats belongs to the first one. */
export const formats = {
  gpt_oss: { ...harmony, detectedBy: "<|channel|>" },
  gemma4: {
    detectedBy: "<|tool_call>",
    thinking: gemma4Thinking,
    calls: gemma4,
    ends: [gemma4Result],
    opensNext: [gemma4Result],
  },
  minimax_m2: { detectedBy: "<minimax:tool_call>", thinking: thinkTags, calls: minimax },
  deepseek_v32: { detectedBy: "｜DSML｜", thinking: thinkTags, calls: deepseekV32 },
  deepseek_v3: { detectedBy: "<｜tool▁calls▁begin｜>", thinking: thinkTags, calls: deepseek },
  kimi_k2: { detectedBy: "<|tool_calls_section_begin|>", thinking: thinkTags, calls: kimiK2, callId: kimiCallId },
  seed_oss: { detectedBy: "<seed:tool_call>", thinking: { open: "<seed:think>", close: "</seed:think>" }, calls: seed },
  glm: { detectedBy: "<arg_key>", thinking: thinkTags, calls: glm, ends: glmEnds, opensNext: glmEnds },
  qwen3_coder: { detectedBy: "<function=", thinking: thinkTags, calls: qwen3Coder },
  nemotron: { detectedBy: "<TOOLCALL>", thinking: thinkTags, calls: nemotron },
  lfm2: { detectedBy: "<|tool_call_start|>", thinking: thinkTags, calls: lfm2 },
  olmo3: { detectedBy: "<function_calls>", thinking: thinkTags, calls: olmo3 },
  minimax_m1: { detectedBy: "<tool_calls>", calls: minimaxM1 },
  phi4: { detectedBy: "<|/tool_call|>", thinking: thinkTags, calls: phi4 },
  granite: { detectedBy: "<|tool_call|>", thinking: thinkTags, calls: granite },
  mistral: { detectedBy: "[TOOL_CALLS]", thinking: mistralThinking, calls: mistral, callId: mistralCallId },
  llama4: { detectedBy: "<|header_start|>", calls: llama4 },
  qwen3: { detectedBy: "<tool_call>", thinking: thinkTags, calls: hermes },
  llama3: { detectedBy: "<|start_header_id|>", calls: llama3, ends: ["<|eom_id|>"] },
} as const satisfies Record<string, NamedFormat>;

/**
 * How a model's replies are parsed.
 *
 * @param template the model's own
 * @param withTools the template that replaces it if tools are offered
 */
export function detectFormat(template: string, withTools = template): ReplyFormat {
  const found = (Object.values(formats) as NamedFormat[]).find(({ detectedBy = "" }) => withTools.includes(detectedBy));
  // A model of a family that can think may have been trained not to: then its template has no mark of the thinking.
  const marks = [found?.thinking, thinkTags, mistralThinking].filter((each) => each !== undefined);
  return { ...found, thinking: marks.find(({ close }) => template.includes(close)) };
}

/** Marks of all formats, which are control tokens where a tokenizer has them as added tokens. */
export const formatMarks: readonly string[] = [
  ...(Object.values(formats) as NamedFormat[]).flatMap(({ thinking, calls, ends = [] }) => [
    ...(thinking ? [thinking.open, thinking.close] : []),
    ...(calls?.starts ?? []),
    ...ends,
  ]),
  ..."</tool_call> <tool_response> </tool_response> <tools> </tools> </TOOLCALL> </seed:tool_call>".split(" "),
  ..."</minimax:tool_call> <arg_key> </arg_key> <arg_value> </arg_value> <answer> </answer>".split(" "),
];
