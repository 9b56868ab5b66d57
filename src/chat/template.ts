/** Renders chat templates with limits: a template that loops or grows without bound throws. */

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Interpreter, Template } from "@huggingface/jinja";
import { messageOf, UserError } from "../base/errors.ts";
import { type ChatMessage, type Content, joinContents, type ToolDefinition, textOf } from "./messages.ts";
import type { ReplyFormat } from "./reply-format.ts";
import { readJson, type TokenizerConfig } from "./tokenizer.ts";
import type { RenderOptions } from "./types.ts";

/** Limit of evaluated expressions per rendering, plus a limit per message. Real templates need about 200 per message. */
const evaluations = { any: 200_000, eachMessage: 20_000 };
const longestText = 64_000_000;
const longestList = 1_000_000;
const longestRange = 10_000;

/** The expressions that loops iterate over. */
const iterables = new WeakSet<object>();
let left = Number.POSITIVE_INFINITY;

// The library creates its interpreters itself. Rendering is synchronous, so one counter is enough.
const { evaluate } = Interpreter.prototype;
Interpreter.prototype.evaluate = function (
  this: Interpreter,
  statement: Parameters<typeof evaluate>[0],
  environment: Parameters<typeof evaluate>[1],
): ReturnType<typeof evaluate> {
  left--;
  const result = evaluate.call(this, statement, environment);
  const value: unknown = result.value;
  if (typeof value === "string" && value.length > longestText) {
    throw new Error(`it creates a text of ${value.length} characters`);
  }
  if (Array.isArray(value) && value.length > longestList) throw new Error(`it creates a list of ${value.length} items`);
  if (Array.isArray(value) && statement !== undefined && iterables.has(statement)) left -= value.length;
  if (left < 0) throw new Error("its loops run over far more than the messages");
  return result;
};

const boundedRange = "bounded_range";

interface AstNode {
  type?: string;
  value?: unknown;
  computed?: boolean;
  /** Only of a loop. With a condition it is a node whose `lhs` is the list. */
  iterable?: AstNode;
  lhs?: AstNode;
}

/** @param parsed changed in place: the library's `range` creates the whole list before its length can be checked */
function boundLoops(parsed: unknown): void {
  if (typeof parsed !== "object" || parsed === null) return;
  const node = parsed as AstNode;
  if (node.type === "For" && node.iterable) iterables.add(node.iterable);
  if (node.type === "For" && node.iterable?.lhs) iterables.add(node.iterable.lhs);
  if (node.type === "Identifier" && node.value === "range") node.value = boundedRange;
  for (const [name, child] of Object.entries(node)) {
    // The `range` of `message.range` is a key, not the function.
    if (name !== "property" || node.computed) boundLoops(child);
  }
}

/** @throws Error if the template throws, or loops or grows beyond the limits */
function renderBounded(template: Template, variables: Record<string, unknown>, messages: number): string {
  left = evaluations.any + evaluations.eachMessage * messages;
  try {
    return template.render({ ...variables, [boundedRange]: range });
  } finally {
    left = Number.POSITIVE_INFINITY;
  }
}

function range(first: number, second?: number, step = 1): number[] {
  const [start, stop] = second === undefined ? [0, first] : [first, second];
  if (step === 0) throw new Error("range() step must not be zero");
  const length = Math.max(0, Math.ceil((stop - start) / step));
  if (!(length <= longestRange)) throw new Error(`it creates a list of ${length} items`);
  return Array.from({ length }, (_, index) => start + index * step);
}

// Messages and tools as chat templates expect them: as in the OpenAI API, with parsed arguments.

/** What a template expects, other than most. */
interface TemplateHabits {
  /** A call's arguments as JSON text. */
  argumentsAsText: boolean;
  /** Text as a list with one part. */
  textAsParts: boolean;
  /** The key of the thinking; `"part"` if it is a part of the content. */
  reasoningKey: "reasoning_content" | "reasoning" | "thinking" | "part";
}

/** @param callId the id that the template expects, see `ReplyFormat` */
function toTemplateMessages(
  messages: readonly ChatMessage[],
  habits: TemplateHabits,
  callId: ReplyFormat["callId"],
): Record<string, unknown>[] {
  const ids = new Map<string, string>();
  let index = 0;
  return messages.map((message) => {
    for (const { id, name, writtenId } of message.toolCalls ?? []) {
      ids.set(id, writtenId ?? callId?.(id, name, index) ?? id);
      index++;
    }
    return toTemplateMessage(message, habits, (id) => ids.get(id) ?? callId?.(id, "", 0) ?? id);
  });
}

function toTemplateMessage(
  message: ChatMessage,
  habits: TemplateHabits,
  idOf: (id: string) => string,
): Record<string, unknown> {
  const { role, content, reasoning, toolCalls, toolCallId, name } = message;
  const { argumentsAsText, textAsParts, reasoningKey } = habits;
  const written: Record<string, unknown> = { role, content: toTemplateContent(content, textAsParts) };
  // Templates test which keys exist.
  if (reasoning !== undefined && reasoningKey !== "part") written[reasoningKey] = reasoning;
  if (reasoning && reasoningKey === "part") {
    const said = toTemplateContent(content, true);
    written.content = [{ type: "thinking", thinking: reasoning }, ...(content === "" ? [] : (said as unknown[]))];
  }
  if (toolCalls?.length) {
    written.tool_calls = toolCalls.map((call) => ({
      id: idOf(call.id),
      type: "function",
      function: { name: call.name, arguments: argumentsAsText ? JSON.stringify(call.arguments) : call.arguments },
    }));
  }
  if (toolCallId !== undefined) written.tool_call_id = idOf(toolCallId);
  if (name !== undefined) written.name = name;
  return written;
}

/** An image is only its place: the template writes a placeholder. */
function toTemplateContent(content: Content, textAsParts: boolean): unknown {
  if (typeof content === "string") return textAsParts ? [{ type: "text", text: content }] : content;
  return content.map((part) => (part.type === "text" ? part : { type: "image" }));
}

export function toTemplateTool({ name, description, parameters }: ToolDefinition): Record<string, unknown> {
  const schema = parameters ?? { type: "object", properties: {} };
  const written = description === undefined ? { name, parameters: schema } : { name, description, parameters: schema };
  return { type: "function", function: written };
}

// Tools for chat templates that do not support them, in the format of Hermes: the system message describes the tools,
// calls are text of the reply, and results are user messages.

/**
 * @param systemRole whether the template supports system messages; else the first user message describes the tools
 * @returns the messages with tool calls and results as plain text
 */
function withGenericTools(
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  systemRole: boolean,
): ChatMessage[] {
  const written = messages.map(writeCalls).reduce(joinUsers, []);
  const role = systemRole ? "system" : "user";
  const at = written.findIndex((message) => message.role === role);
  const section = describe(tools);
  const content = written[at]?.content;
  if (content === undefined || (systemRole && at > 0)) return [{ role, content: section }, ...written];
  // The user's question stays last.
  const joined = systemRole ? joinContents(content, `\n\n${section}`) : joinContents(`${section}\n\n`, content);
  return written.with(at, { role, content: joined });
}

const describe = (tools: readonly ToolDefinition[]) => `You can call these functions:
<tools>
${tools.map((tool) => JSON.stringify(toTemplateTool(tool))).join("\n")}
</tools>
To call one, write its name and arguments as JSON between tags:
<tool_call>
{"name": "...", "arguments": {...}}
</tool_call>`;

function writeCalls({ role, content, reasoning, toolCalls = [] }: ChatMessage): ChatMessage {
  if (role === "tool") {
    return { role: "user", content: joinContents("<tool_response>\n", content, "\n</tool_response>") };
  }
  const calls = toolCalls.map(
    ({ name, arguments: given }) => `<tool_call>\n${JSON.stringify({ name, arguments: given })}\n</tool_call>`,
  );
  if (calls.length === 0) return { role, content, reasoning };
  return { role, content: (content === "" ? calls : [textOf(content), ...calls]).join("\n"), reasoning };
}

/** Joins adjacent user messages, since some templates require user and assistant to alternate. */
function joinUsers(joined: ChatMessage[], message: ChatMessage): ChatMessage[] {
  const last = joined.at(-1);
  if (last?.role !== "user" || message.role !== "user") return [...joined, message];
  return [...joined.slice(0, -1), { role: "user", content: joinContents(last.content, "\n", message.content) }];
}

// Rewrites parsed templates where the template library differs from Python: its `strip`, `lstrip` and `rstrip` ignore the
// characters argument, these methods and the `trim` filter use another definition of white space, and its `string` filter writes
// `true` for `True`.

interface Node {
  type?: string;
  value?: unknown;
  callee?: Node;
  object?: Node;
  property?: Node;
  computed?: boolean;
  args?: Node[];
  filter?: Node;
  operand?: Node;
}

const methods = ["strip", "lstrip", "rstrip"] as const;

/** Functions that a rewritten template calls; pass them as variables when rendering. */
const pythonFunctions: Readonly<Record<string, (text: unknown, characters?: unknown) => string>> = {
  python_strip: stripMethod("strip"),
  python_lstrip: stripMethod("lstrip"),
  python_rstrip: stripMethod("rstrip"),
  // Like Python's filter, it accepts any value.
  python_trim: (value, characters) => strip(asText(value), "strip", characters),
  python_string: (value) => asText(value),
};

/** @param parsed changed in place */
function matchPython(parsed: unknown): void {
  if (typeof parsed !== "object" || parsed === null) return;
  const node = parsed as Node;
  const { type, object, property, computed } = node.callee ?? {};
  if (node.type === "CallExpression" && type === "MemberExpression" && !computed && object) {
    if (methods.some((name) => name === property?.value)) {
      node.args = [object, ...(node.args ?? [])];
      node.callee = identifier(`python_${property?.value}`);
    }
  } else if (node.type === "FilterExpression" && node.operand) {
    const name = isTrim(node.filter) ? "python_trim" : node.filter?.value === "string" ? "python_string" : undefined;
    if (name !== undefined) {
      const args = [node.operand, ...(node.filter?.args ?? [])];
      delete node.filter;
      delete node.operand;
      Object.assign(node, { type: "CallExpression", callee: identifier(name), args });
    }
  }
  for (const child of Object.values(node)) matchPython(child);
}

const identifier = (name: string): Node => ({ type: "Identifier", value: name });

const isTrim = (filter: Node | undefined) =>
  (filter?.type === "Identifier" && filter.value === "trim") ||
  (filter?.type === "CallExpression" && filter.callee?.value === "trim");

function stripMethod(side: (typeof methods)[number]) {
  return (text: unknown, characters?: unknown) => {
    if (typeof text !== "string") throw new Error(`${side} of a value that is not a string`);
    return strip(text, side, characters);
  };
}

/** White space of Python's `str.isspace`. */
const pythonSpace = new Set(
  "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000",
);

function strip(text: string, side: (typeof methods)[number], characters: unknown): string {
  const gone = typeof characters === "string" ? new Set(characters) : pythonSpace;
  const letters = [...text];
  const keep = (letter: string) => !gone.has(letter);
  const start = side === "rstrip" ? 0 : letters.findIndex(keep);
  const end = side === "lstrip" ? letters.length : letters.findLastIndex(keep) + 1;
  return start < 0 ? "" : letters.slice(start, end).join("");
}

/** Python's `str`, for the values of tool calls. */
function asText(value: unknown): string {
  return value === undefined ? "" : typeof value === "string" ? value : asRepresentation(value);
}

function asRepresentation(value: unknown): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return quoted(value);
  if (Array.isArray(value)) return `[${value.map(asRepresentation).join(", ")}]`;
  const entries = value instanceof Map ? [...value] : typeof value === "object" ? Object.entries(value) : undefined;
  if (entries === undefined) return String(value);
  return `{${entries.map(([key, part]) => `${asRepresentation(key)}: ${asRepresentation(part)}`).join(", ")}}`;
}

/** With the quotation mark that needs no escape, if there is one. */
function quoted(text: string): string {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\r", "\\r").replaceAll("\t", "\\t");
  return `${mark}${mark === "'" ? escaped.replaceAll("'", "\\'") : escaped}${mark}`;
}

// Finds a model's chat template and renders messages as text. Works without tokens.

/** A model's templates. `tools` replaces `plain` if tools are offered. */
export interface TemplateSources {
  plain: string;
  tools?: string | undefined;
}

/**
 * From chat_template.jinja, else from a processor's chat_template.json, else from tokenizer_config.json (if it has several:
 * "default" and "tool_use").
 */
export function findTemplate(directory: string, config: TokenizerConfig): TemplateSources | undefined {
  const file = join(directory, "chat_template.jinja");
  if (existsSync(file)) return { plain: readFileSync(file, "utf8") };
  const processors = join(directory, "chat_template.json");
  if (existsSync(processors) && existsSync(join(directory, "preprocessor_config.json"))) {
    const { chat_template: template } = readJson(processors) as { chat_template?: unknown };
    if (typeof template === "string") return { plain: template };
  }
  const own = config.chat_template;
  if (own == null || typeof own === "string") return own == null ? undefined : { plain: own };
  const named = (wanted: string) => own.find(({ name }) => name === wanted)?.template;
  const plain = named("default");
  return plain === undefined ? undefined : { plain, tools: named("tool_use") };
}

export interface CompiledTemplate {
  renderText: RenderText;
  /** Whether the template supports tools. If not, the system message describes them. */
  takesTools: boolean;
}

export type RenderText = (messages: readonly ChatMessage[], options: RenderOptions) => string;

/**
 * Renders as transformers does.
 *
 * @param owner the model's folder, for error messages
 * @param callId the ids of calls that the template expects
 * @throws UserError if the template cannot be parsed; the returned function throws one if it refuses the messages
 */
export function compileTemplate(
  sources: TemplateSources,
  config: TokenizerConfig,
  owner: string,
  callId?: ReplyFormat["callId"],
): CompiledTemplate {
  const plain = parse(sources.plain, owner);
  const withTools = sources.tools === undefined ? plain : parse(sources.tools, owner);
  const named = {
    bos_token: config.bos_token,
    eos_token: config.eos_token,
    pad_token: config.pad_token,
    unk_token: config.unk_token,
  };
  // Undefined tokens are left out, as in transformers, since templates test for them.
  const specials = Object.fromEntries(Object.entries(named).filter(([, token]) => token != null));

  const habits: TemplateHabits = { argumentsAsText: false, textAsParts: false, reasoningKey: "reasoning_content" };
  const render: RenderText = (messages, { addGenerationPrompt = true, tools = [], thinking, reasoningEffort }) => {
    try {
      const variables: Record<string, unknown> = {
        ...specials,
        ...pythonFunctions,
        messages: toTemplateMessages(messages, habits, callId),
        add_generation_prompt: addGenerationPrompt,
        tools: tools.length > 0 ? tools.map(toTemplateTool) : null,
        documents: null,
      };
      // Templates of DeepSeek, Granite and Kimi have another name for the same switch.
      if (thinking !== undefined) Object.assign(variables, { enable_thinking: thinking, thinking });
      if (reasoningEffort !== undefined) variables.reasoning_effort = reasoningEffort;
      return renderBounded(tools.length > 0 ? withTools : plain, variables, messages.length + tools.length);
    } catch (error) {
      const roles = messages.map((message) => message.role).join(", ");
      throw new UserError(`the chat template of ${owner} refuses these messages (${roles}): ${messageOf(error)}`, {
        cause: error,
      });
    }
  };

  habits.textAsParts = !showsText(render);
  // A template that refuses a single question as text and as a part throws at its first use.
  if (habits.textAsParts) habits.textAsParts = showsText(render);
  habits.reasoningKey = findReasoningKey(sources.plain, render, habits);
  const takesTools = showsTools(render);
  const takesSystem = takesTools || showsSystem(render);
  let argumentsKnown = false;
  const renderText: RenderText = (messages, options) => {
    const { tools = [], ...rest } = options;
    if (tools.length > 0 && !takesTools) return render(withGenericTools(messages, tools, takesSystem), rest);
    if (!argumentsKnown && messages.some(({ toolCalls }) => toolCalls?.length)) {
      argumentsKnown = true;
      habits.argumentsAsText =
        [false, true].find((asText) => {
          habits.argumentsAsText = asText;
          return showsArguments(render);
        }) ?? false;
    }
    return render(messages, options);
  };
  return { renderText, takesTools };
}

const mark = "Qz7mark7zQ";

/** Whether the text of a message is written, and not as a list in JSON. */
function showsText(render: RenderText): boolean {
  try {
    const text = render([{ role: "user", content: mark }], {});
    return text.includes(mark) && !text.includes(`"${mark}"`);
  } catch {
    return false;
  }
}

/** The key under which the template looks for thinking, tried with and without calls, since some write it only next to calls. */
function findReasoningKey(source: string, render: RenderText, habits: TemplateHabits): TemplateHabits["reasoningKey"] {
  const reads = (key: string) => new RegExp(`\\.${key}\\b|(["'])${key}\\1`).test(source);
  const keys = [
    ...(["reasoning_content", "reasoning", "thinking"] as const).filter(reads),
    ...(reads("thinking") ? (["part"] as const) : []),
  ];
  if (keys.every((key) => key === "reasoning_content")) return "reasoning_content";
  const toolCalls = [{ id: "call00000", name: "f", arguments: {} }];
  const replies: ChatMessage[] = [
    { role: "assistant", content: "a", reasoning: mark },
    { role: "assistant", content: "", reasoning: mark, toolCalls },
  ];
  for (const reasoningKey of keys) {
    habits.reasoningKey = reasoningKey;
    for (const reply of replies) {
      try {
        const text = render([...asked, reply], { addGenerationPrompt: false });
        // A list that is printed as such was not understood.
        if (text.includes(mark) && !/["']type["']/.test(text)) return reasoningKey;
      } catch {
        // The template may refuse replies with thinking or calls.
      }
    }
  }
  return "reasoning_content";
}

function showsTools(render: RenderText): boolean {
  try {
    return render(asked, { tools: [{ name: mark }] }) !== render(asked, {});
  } catch {
    // A template that refuses a single question throws at its first use.
    return true;
  }
}

function showsSystem(render: RenderText): boolean {
  try {
    return render([{ role: "system", content: mark }, ...asked], {}).includes(mark);
  } catch {
    return false;
  }
}

/** Whether a call's arguments are rendered as JSON: most templates expect an object, some a string. */
function showsArguments(render: RenderText): boolean {
  const toolCalls = [{ id: "call00000", name: "f", arguments: { argument: "value" } }];
  try {
    const text = render([...asked, { role: "assistant", content: "", toolCalls }], { addGenerationPrompt: false });
    return text.includes('"argument"');
  } catch {
    return false;
  }
}

const asked = [{ role: "user", content: "?" }] as const;

function parse(source: string, owner: string): Template {
  try {
    const template = new Template(source);
    matchPython(template.parsed);
    boundLoops(template.parsed);
    return template;
  } catch (error) {
    throw new UserError(`the chat template of ${owner} cannot be parsed: ${messageOf(error)}`, { cause: error });
  }
}
