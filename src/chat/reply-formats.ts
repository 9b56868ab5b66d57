/**
 * DeepSeek V3 and R1 write `<｜tool▁call▁begin｜>function<｜tool▁sep｜>add` and the arguments as a block of JSON, V3.1 writes
 * `<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}`. Both are in one section.
 */
import { isObject } from "../base/values.ts";
import { callFromTexts, lfm2, llama4, olmo3 } from "./python-calls.ts";
import {
  allOrProblem,
  between,
  type CallFormat,
  callFromJson,
  callFromValue,
  callOfParts,
  deepest,
  endOfValue,
  inSection,
  malformed,
  notJson,
  type ReadBody,
  type ReadCalls,
  type ReplyFormat,
  readJsonValues,
  readTags,
  type SplitReply,
  type ThinkingMarks,
  thinkTags,
  type WrittenCall,
  type WrittenCalls,
  withoutLineEnds,
} from "./reply-format.ts";

const deepseekSeparator = "<｜tool▁sep｜>";
const deepseekBegin = "<｜tool▁calls▁begin｜>";
const fence = "```";

const readDeepseekCall: ReadBody = (body) => {
  const at = body.indexOf(deepseekSeparator);
  if (at < 0) return `it has no ${deepseekSeparator}`;
  const before = body.slice(0, at).trim();
  const after = body.slice(at + deepseekSeparator.length);
  const block = after.indexOf(`${fence}json`);
  if (before !== "function" || block < 0) return named(before, after);
  const end = after.indexOf(fence, block + fence.length);
  return named(after.slice(0, block).trim(), after.slice(block + `${fence}json`.length, end < 0 ? undefined : end));
};

const named = (name: string, json: string) => (name === "" ? "it has no name" : callOfParts(name, json));

const deepseekCall = between("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", readDeepseekCall);

const deepseek: CallFormat = {
  starts: [deepseekBegin],
  read: inSection(deepseekBegin, "<｜tool▁calls▁end｜>", deepseekCall),
};

// Gemma 4: `<|tool_call>call:add{a:1,city:<|"|>Paris<|"|>}<tool_call|>`, any number of them.

const gemma4: CallFormat = {
  starts: ["<|tool_call>"],
  read: between("<|tool_call>", "<tool_call|>", readGemmaCall),
};

const gemma4Thinking: ThinkingMarks = { open: "<|channel>thought", close: "<channel|>" };

/** After a call, the model ends its reply with the header of the result. */
const gemma4Result = "<|tool_response>";

const quote = '<|"|>';

class NotGemma extends Error {}

function readGemmaCall(body: string): WrittenCall | string {
  const head = /^\s*call:([^{\s]+)\s*/.exec(body);
  const name = head?.[1];
  if (head === null || name === undefined) return "it does not begin with call: and a name";
  try {
    return callFromValue({ name, arguments: readObject(body, head[0].length) }, ["arguments"]);
  } catch (error) {
    if (error instanceof NotGemma) return error.message;
    throw error;
  }
}

/** Objects and lists in JSON's syntax, with names without quotation marks and texts between `<|"|>`. */
function readObject(text: string, start: number): unknown {
  let at = start;
  const fail = (what: string): never => {
    throw new NotGemma(`${what} at character ${at}`);
  };
  function take(mark: string): boolean {
    while (at < text.length && text.charAt(at).trim() === "") at++;
    if (!text.startsWith(mark, at)) return false;
    at += mark.length;
    return true;
  }
  function until(marks: RegExp): string {
    marks.lastIndex = at;
    const end = marks.exec(text)?.index ?? fail("an end is missing");
    const found = text.slice(at, end);
    at = end;
    return found;
  }
  function quoted(): string {
    const end = text.indexOf(quote, at);
    if (end < 0) fail("a text is not closed");
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
      return JSON.parse(written);
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
  const found = object(0);
  if (text.slice(at).trim() !== "") fail("text follows the arguments");
  return found;
}

// GLM 4.5 and later: `<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>`.

const key = { open: "<arg_key>", close: "</arg_key>" };
const value = { open: "<arg_value>", close: "</arg_value>" };

const glm: CallFormat = {
  starts: ["<tool_call>"],
  read: between("<tool_call>", "</tool_call>", (body, tools) => {
    const texts: [string, string][] = [];
    const first = body.indexOf(key.open);
    const name = (first < 0 ? body : body.slice(0, first)).trim();
    if (/[\s<{]/.test(name)) return `${JSON.stringify(name.slice(0, 40))} is not a name`;
    for (let at = first; at >= 0 && at < body.length; ) {
      const keyEnd = body.indexOf(key.close, at);
      const start = body.indexOf(value.open, keyEnd);
      const end = body.indexOf(value.close, start);
      if (!body.startsWith(key.open, at) || keyEnd < 0 || start < 0 || end < 0) return `a ${key.open} has no value`;
      if (body.slice(keyEnd + key.close.length, start).trim() !== "") return `a ${key.open} has no value`;
      texts.push([body.slice(at + key.open.length, keyEnd).trim(), body.slice(start + value.open.length, end)]);
      at = skipSpace(body, end + value.close.length);
    }
    return callFromTexts(name, texts, tools);
  }),
};

function skipSpace(text: string, from: number): number {
  let at = from;
  while (at < text.length && text.charAt(at).trim() === "") at++;
  return at;
}

/** Its turns have no end: the model ends a reply with the header of the next turn. */
const glmEnds = ["<|user|>", "<|observation|>"];

// gpt-oss: a reply is a sequence of messages, each with a header that names its channel. `analysis` is thinking, `final` is
// the answer. A call has a recipient: `<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>`.

const start = "<|start|>";
const message = "<|message|>";

interface HarmonyMessage {
  channel: string | undefined;
  recipient: string | undefined;
  body: string;
  /** With the header. */
  whole: string;
}

/** The prompt ends with `<|start|>assistant`, so the first message has only the rest of its header. */
function readMessages(text: string): { before: string; messages: HarmonyMessage[] } {
  const messages: HarmonyMessage[] = [];
  const parts = text.split(/(?=<\|start\|>)|(?<=<\|(?:end|call|return)\|>)/);
  let before = "";
  for (const whole of parts) {
    const at = whole.indexOf(message);
    const header = whole.slice(0, Math.max(at, 0));
    if (at < 0 || (messages.length === 0 && !/^\s*(<\|start\|>|<\|channel\|>|to=)/.test(header))) {
      before += whole;
      continue;
    }
    messages.push({
      channel: /<\|channel\|>\s*(\w+)/.exec(header)?.[1],
      recipient: /(?:^|\s)to=([^\s<]+)/.exec(header.replace("<|channel|>", " <|channel|>"))?.[1],
      body: whole.slice(at + message.length).replace(/<\|(?:end|call|return)\|>$/, ""),
      whole,
    });
  }
  return { before, messages };
}

const isCall = ({ recipient, whole }: HarmonyMessage) =>
  recipient !== undefined && !whole.startsWith("<|start|>functions");

function split(text: string): SplitReply {
  const { before, messages } = readMessages(text);
  const isThought = (each: HarmonyMessage) => each.channel === "analysis" && !isCall(each);
  const thoughts = messages.filter(isThought);
  const rest = messages.filter((each) => !isThought(each));
  const content = before + rest.map((each) => (isCall(each) ? each.whole : each.body)).join("");
  if (thoughts.length === 0) return { content, problems: [] };
  const reasoning = thoughts.map(({ body }) => body.trim()).join("\n");
  const problem = { kind: "unclosed_thinking", message: "the reply has only thinking, so there is no answer" } as const;
  return { reasoning, content, problems: content.trim() === "" ? [{ ...problem, text: reasoning }] : [] };
}

const calls: CallFormat = {
  starts: ["<|channel|>commentary", " to=", start],
  read(text) {
    const { before, messages } = readMessages(text);
    const found: WrittenCalls = { content: before, calls: [], problems: [] };
    if (/^(?:<\|start\|>assistant)?\s*(?:<\|channel\|>\w+\s*)?to=/.test(before.trimStart())) {
      found.problems.push({ kind: "unclosed_tool_call", message: `a tool call has no ${message}`, text: before });
    }
    for (const each of messages) {
      const call = isCall(each) && callOfParts((each.recipient ?? "").replace(/^functions\./, ""), each.body);
      if (typeof call === "object") found.calls.push(call);
      else found.content += each.whole;
      if (typeof call === "string") found.problems.push(malformed(call, each.whole));
    }
    return found;
  },
};

const harmony: ReplyFormat = {
  thinking: { open: "<|channel|>analysis<|message|>", close: "<|end|>" },
  answer: "<|channel|>final<|message|>",
  split,
  calls,
  ends: ["<|return|>", "<|call|>"],
  writtenEnds: ["<|end|>"],
};

// Hermes, Qwen2.5, Qwen3, SmolLM3, Granite 4: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them.

/**
 * @example
 * hermes.read('Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', []);
 * // content "Let me see.", one call
 */
export const hermes: CallFormat = {
  starts: ["<tool_call>"],
  read: between("<tool_call>", "</tool_call>", (body) => callFromJson(body, "arguments")),
};

// `<invoke name="add"><parameter name="a">1</parameter></invoke>` in a section: MiniMax M2, and DeepSeek V3.2 and V4, which write
// `｜DSML｜` in each tag and say which parameters are strings.

function invocations(prefix: string): ReadCalls {
  const invoke = { before: `<${prefix}invoke name="`, close: `</${prefix}invoke>` };
  const parameter = { before: `<${prefix}parameter name="`, after: ">", close: `</${prefix}parameter>` };
  return between(invoke.before, invoke.close, (body, tools) => {
    const nameEnd = body.indexOf('">');
    if (nameEnd < 0) return "its name is not closed";
    const parameters = readTags(body.slice(nameEnd + '">'.length), parameter);
    if (typeof parameters === "string") return parameters;
    // The name of a parameter is read up to `>`: a quotation mark and, in DeepSeek's form, an attribute follow.
    const texts = parameters.map(([head, text]): [string, string, boolean | undefined] => {
      const [key = "", rest = ""] = head.split('"', 2).length === 2 ? [head.slice(0, head.indexOf('"')), head] : [head];
      return [key, text, rest.includes('string="true"') ? true : rest.includes('string="false"') ? false : undefined];
    });
    return callFromTexts(body.slice(0, nameEnd), texts, tools);
  });
}

const minimax: CallFormat = {
  starts: ["<minimax:tool_call>"],
  read: inSection("<minimax:tool_call>", "</minimax:tool_call>", invocations("")),
};

const dsml = invocations("｜DSML｜");

const deepseekV32: CallFormat = {
  starts: ["<｜DSML｜"],
  read: (text, tools) => {
    const section = text.includes("<｜DSML｜tool_calls>") ? "tool_calls" : "function_calls";
    return inSection(`<｜DSML｜${section}>`, `</｜DSML｜${section}>`, dsml)(text, tools);
  },
};

// Kimi K2: `<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>` in a section.

const kimiBegin = "<|tool_calls_section_begin|>";
const kimiSeparator = "<|tool_call_argument_begin|>";

const kimiCall = between("<|tool_call_begin|>", "<|tool_call_end|>", (body) => {
  const at = body.indexOf(kimiSeparator);
  if (at < 0) return `it has no ${kimiSeparator}`;
  const id = body.slice(0, at).trim();
  const name = id.replace(/^functions\./, "").replace(/:\d+$/, "");
  if (name === "") return "it has no name";
  const call = callOfParts(name, body.slice(at + kimiSeparator.length));
  return typeof call === "string" ? call : { ...call, writtenId: id };
});

const kimiK2: CallFormat = {
  starts: [kimiBegin],
  read: inSection(kimiBegin, "<|tool_calls_section_end|>", kimiCall),
};

/** The results of calls refer to these ids, which count the calls of a conversation. */
const kimiCallId = (id: string, name: string, index: number) =>
  /^functions\..+:\d+$/.test(id) ? id : `functions.${name}:${index}`;

// Calls as a list in JSON between marks, each `{"name": ..., "arguments": {...}}`.

const readList: ReadBody = (body) => {
  let value: unknown;
  try {
    value = JSON.parse(body);
  } catch (error) {
    return notJson(error);
  }
  return listOf(value);
};

function listOf(value: unknown) {
  if (!Array.isArray(value) && !isObject(value)) return "it is not a list";
  return allOrProblem([value].flat().map((call) => callFromValue(call, ["arguments", "parameters"])));
}

/** Nemotron Nano 2: `<TOOLCALL>[...]</TOOLCALL>`. */
const nemotron: CallFormat = {
  starts: ["<TOOLCALL>"],
  read: between("<TOOLCALL>", "</TOOLCALL>", readList),
};

/** MiniMax M1: `<tool_calls>` and one call in JSON per line. */
const minimaxM1: CallFormat = {
  starts: ["<tool_calls>"],
  read: between("<tool_calls>", "</tool_calls>", (body) => {
    const { values, problem } = readJsonValues(body, "\n");
    return problem ?? allOrProblem(values.map(({ value, text }) => callFromValue(value, ["arguments"], text)));
  }),
};

/** Lists, each after a mark and, in some models, before another mark. Otherwise a list ends where its JSON ends. */
const afterMark =
  (open: string, close: string): ReadCalls =>
  (text) => {
    const found: WrittenCalls = { content: "", calls: [], problems: [] };
    let from = 0;
    for (let at = text.indexOf(open); at >= 0; at = text.indexOf(open, from)) {
      const start = at + open.length;
      const next = text.indexOf(open, start);
      const part = text.slice(start, next < 0 ? undefined : next);
      const end = endOfValue(part);
      const calls = readList(part.slice(0, end), []);
      const isClosed = part.slice(end).trimStart().startsWith(close);
      found.content += text.slice(from, at);
      from = start + end + (isClosed ? part.slice(end).indexOf(close) + close.length : 0);
      if (typeof calls !== "string") found.calls.push(...[calls].flat());
      else {
        found.problems.push(malformed(calls, text.slice(at, from)));
        found.content += text.slice(at, from);
      }
    }
    found.content += text.slice(from);
    return found;
  };

/** Phi-4-mini and Granite 3: `<|tool_call|>[...]`, closed by `<|/tool_call|>` in Phi. */
const phi4: CallFormat = { starts: ["<|tool_call|>"], read: afterMark("<|tool_call|>", "<|/tool_call|>") };

/** Granite 3.1 to 3.3: `<tool_call>[...]`, or as Granite 3.0. */
const granite: CallFormat = {
  starts: ["<|tool_call|>", "<tool_call>"],
  read: (text, tools) =>
    text.includes("<|tool_call|>") ? phi4.read(text, tools) : afterMark("<tool_call>", "</tool_call>")(text, tools),
};

// Llama 3: the whole reply is `{"name": ..., "parameters": {...}}`, or several of them separated by semicolons, optionally
// after `<|python_tag|>`.

const tag = "<|python_tag|>";

export const llama3: CallFormat = { starts: ["{", tag], read: readLlama3 };

function readLlama3(text: string): WrittenCalls {
  const tagged = text.trimStart().startsWith(tag);
  const body = tagged ? text.slice(text.indexOf(tag) + tag.length) : text;
  if (!tagged && !body.trimStart().startsWith("{")) return { content: text, calls: [], problems: [] };
  const { values, problem } = readJsonValues(body, ";");
  const calls = values.map(({ value, text: written }) => callFromValue(value, ["parameters", "arguments"], written));
  const wrong = problem ?? (calls.length === 0 ? "nothing follows" : calls.find((call) => typeof call === "string"));
  // All or nothing, since other JSON may be the answer itself.
  if (wrong === undefined) {
    return { content: "", calls: calls.filter((call) => typeof call !== "string"), problems: [] };
  }
  const meant = tagged || /"(name|parameters)"\s*:/.test(body);
  return { content: text, calls: [], problems: meant ? [malformed(wrong, text)] : [] };
}

// Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, or, since version 11 of its tokenizer,
// `[TOOL_CALLS]name[ARGS]{...}` each. Reasoning models think between `[THINK]` and `[/THINK]`.

const mark = "[TOOL_CALLS]";

export const mistral: CallFormat = { starts: [mark], read };

const mistralThinking: ThinkingMarks = { open: "[THINK]", close: "[/THINK]" };

/** Its templates refuse ids of another length. */
const mistralCallId = (id: string, _name: string, index: number) =>
  /^[a-zA-Z0-9]{9}$/.test(id) ? id : `call${index.toString(36).padStart(5, "0")}`;

function read(text: string): WrittenCalls {
  const [content, ...parts] = text.split(mark);
  const found: WrittenCalls = { content: content ?? "", calls: [], problems: [] };
  for (const part of parts) {
    const { calls, rest } = readPart(part);
    if (typeof calls === "string") found.problems.push(malformed(calls, mark + part));
    else found.calls.push(...calls);
    found.content += typeof calls === "string" ? mark + part : rest;
  }
  return found;
}

function readPart(part: string): { calls: WrittenCall[] | string; rest: string } {
  const named = /^\s*([\w.-]+)\s*(?:\[CALL_ID\]([^[]*))?\[ARGS\]/.exec(part);
  const { values, rest, problem } = readJsonValues(named ? part.slice(named[0].length) : part, ",");
  // After a call, the model may go on with text, but half a call is none.
  const isText = values.length > 0 && !/^[[{"]/.test(rest);
  if (problem !== undefined && !isText) return { calls: problem, rest };
  if (values.length === 0) return { calls: "nothing follows", rest };
  if (!named) {
    const calls = values.flatMap(({ value }) => [value].flat().map((call) => callFromValue(call, ["arguments"])));
    return { calls: allOrProblem(calls), rest };
  }
  const [, name, id] = named;
  const calls = values.map(({ value, text }) =>
    callFromValue({ name, id, arguments: value }, ["arguments"], `"arguments":${text}`),
  );
  return { calls: allOrProblem(calls), rest };
}

// Qwen3-Coder, Qwen3.5, Nemotron 3: `<tool_call><function=add><parameter=a>1</parameter></function></tool_call>`. Seed-OSS has the
// same elements with other marks.

const element = { before: "<function=", after: ">", close: "</function>" };
const parameter = { before: "<parameter=", after: ">", close: "</parameter>" };

const readFunction: ReadBody = (body, tools) => {
  const found = readTags(body, element);
  if (typeof found === "string") return found;
  const [first] = found;
  if (first === undefined || found.length > 1) return `it has ${found.length} functions instead of one`;
  const parameters = readTags(first[1], parameter);
  if (typeof parameters === "string") return parameters;
  return callFromTexts(
    first[0],
    parameters.map(([key, text]) => [key, withoutLineEnds(text)]),
    tools,
  );
};

const qwen3Coder: CallFormat = {
  starts: ["<tool_call>"],
  read: between("<tool_call>", "</tool_call>", readFunction),
};

const seed: CallFormat = {
  starts: ["<seed:tool_call>"],
  read: between("<seed:tool_call>", "</seed:tool_call>", readFunction),
};

// The reply formats by the name that `rollout_engine.renderer_name` gives them. A format is detected by a text in the template.

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
