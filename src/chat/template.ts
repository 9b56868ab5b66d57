/** Renders conversations as text with a model's chat template, as transformers does. Works without tokens. */

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { messageOf, UserError } from "../base/errors.ts";
import { type CompiledJinja, compileJinja } from "./jinja/jinja.ts";
import { fromJson } from "./jinja/texts.ts";
import { Dict } from "./jinja/values.ts";
import {
  type ChatMessage,
  type Content,
  joinContents,
  type ToolCall,
  type ToolDefinition,
  textOf,
} from "./messages.ts";
import type { ReplyFormat } from "./reply-format.ts";
import { readJson, type TokenizerConfig } from "./tokenizer.ts";
import type { RenderOptions } from "./types.ts";

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
      function: { name: call.name, arguments: toTemplateArguments(call, argumentsAsText) },
    }));
  }
  if (toolCallId !== undefined) written.tool_call_id = idOf(toolCallId);
  if (name !== undefined) written.name = name;
  return written;
}

/** As they were written, if their text is known: `100.0` stays a float, and keys like "404" keep their order. */
function toTemplateArguments(call: ToolCall, asText: boolean): unknown {
  const written = writtenArguments(call);
  if (written === undefined) return asText ? JSON.stringify(call.arguments) : call.arguments;
  return asText ? call.argumentsText : written;
}

/** Undefined if an environment has changed the arguments after they were read. */
function writtenArguments({ argumentsText, arguments: given }: ToolCall): Dict | undefined {
  if (argumentsText === undefined) return undefined;
  try {
    const written = fromJson(argumentsText);
    return written instanceof Dict && isSame(written, given) ? written : undefined;
  } catch {
    return undefined;
  }
}

/** Whether a value of JSON, read exactly, is this one. A large integer may be its digits as a string. */
function isSame(exact: unknown, given: unknown): boolean {
  if (typeof exact === "bigint") return Number(exact) === given || String(exact) === given;
  if (Array.isArray(exact)) {
    return Array.isArray(given) && exact.length === given.length && exact.every((one, at) => isSame(one, given[at]));
  }
  if (!(exact instanceof Dict)) return exact === given;
  if (typeof given !== "object" || given === null || Array.isArray(given)) return false;
  const values = given as Record<string, unknown>;
  const keys = Object.keys(values).filter((key) => values[key] !== undefined);
  return (
    keys.length === exact.entries.size && keys.every((key) => exact.has(key) && isSame(exact.get(key), values[key]))
  );
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

// Finds a model's chat template.

/** A model's templates. `tools` replaces `plain` if tools are offered. */
export interface TemplateSources {
  plain: string;
  tools?: string | undefined;
}

/**
 * From chat_template.jinja and additional_chat_templates/*.jinja, else from a processor's chat_template.json, else from
 * tokenizer_config.json.
 *
 * @throws UserError if the model has several templates, and none is the default or for tools
 */
export function findTemplate(directory: string, config: TokenizerConfig): TemplateSources | undefined {
  const named = readTemplates(directory);
  if (named.size > 0) return selectTemplates(named, directory);
  const processors = join(directory, "chat_template.json");
  if (existsSync(processors) && existsSync(join(directory, "preprocessor_config.json"))) {
    const { chat_template: template } = readJson(processors) as { chat_template?: unknown };
    if (typeof template === "string") return { plain: template };
  }
  const own = config.chat_template;
  if (own == null || typeof own === "string") return own == null ? undefined : { plain: own };
  if (own.length === 0) return undefined;
  return selectTemplates(
    new Map(own.map(({ name, template }) => [name, template])),
    join(directory, "tokenizer_config.json"),
  );
}

/** The templates in files of their own, by name. */
function readTemplates(directory: string): Map<string, string> {
  const named = new Map<string, string>();
  const main = join(directory, "chat_template.jinja");
  if (existsSync(main)) named.set("default", readFileSync(main, "utf8"));
  const more = join(directory, "additional_chat_templates");
  const files = existsSync(more) ? readdirSync(more).filter((file) => file.endsWith(".jinja")) : [];
  for (const file of files.sort()) named.set(file.slice(0, -".jinja".length), readFileSync(join(more, file), "utf8"));
  return named;
}

function selectTemplates(named: ReadonlyMap<string, string>, owner: string): TemplateSources {
  const [plain, tools] = [named.get("default"), named.get("tool_use")];
  if (plain !== undefined) return { plain, tools };
  const names = [...named.keys()].join(", ");
  if (tools === undefined) {
    throw new UserError(`${owner} has several chat templates (${names}), but none is named default or tool_use`, {
      hint: "write the one to use to chat_template.jinja in the model's folder",
    });
  }
  return {
    plain: "{{ raise_exception('it has no default chat template, only one for conversations with tools') }}",
    tools,
  };
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
 * @param compile another one records what templates are given
 * @throws UserError if the template cannot be parsed; the returned function throws one if it refuses the messages
 */
export function compileTemplate(
  sources: TemplateSources,
  config: TokenizerConfig,
  owner: string,
  callId?: ReplyFormat["callId"],
  compile = compileJinja,
): CompiledTemplate {
  const plain = parse(sources.plain, owner, compile);
  const withTools = sources.tools === undefined ? plain : parse(sources.tools, owner, compile);
  const specials = namedTokens(config);

  const habits: TemplateHabits = { argumentsAsText: false, textAsParts: false, reasoningKey: "reasoning_content" };
  const render: RenderText = (messages, { addGenerationPrompt = true, tools = [], thinking, reasoningEffort }) => {
    try {
      const variables: Record<string, unknown> = {
        ...specials,
        messages: toTemplateMessages(messages, habits, callId),
        add_generation_prompt: addGenerationPrompt,
        tools: tools.length > 0 ? tools.map(toTemplateTool) : null,
        documents: null,
      };
      // Templates of DeepSeek, Granite and Kimi have another name for the same switch.
      if (thinking !== undefined) Object.assign(variables, { enable_thinking: thinking, thinking });
      if (reasoningEffort !== undefined) variables.reasoning_effort = reasoningEffort;
      return (tools.length > 0 ? withTools : plain).render(variables, workFor(messages, tools));
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
  habits.reasoningKey = findReasoningKey(sources.plain + (sources.tools ?? ""), render, habits);
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

/**
 * The most work of a rendering, in evaluated expressions. Real templates need about 200 for each message, and read each of its
 * characters fewer than ten times.
 */
function workFor(messages: readonly ChatMessage[], tools: readonly ToolDefinition[]): number {
  let characters = JSON.stringify(tools).length;
  for (const { content, reasoning = "", toolCalls } of messages) {
    characters += textOf(content).length + reasoning.length;
    if (toolCalls) characters += JSON.stringify(toolCalls).length;
  }
  return 200_000 + 20_000 * (messages.length + tools.length) + 4 * characters;
}

/** Tokens that are not set are left out, as in transformers, since templates test for them. */
function namedTokens(config: TokenizerConfig): Record<string, string> {
  const found: Record<string, string> = {};
  for (const [name, token] of Object.entries(config)) {
    const text = typeof token === "object" && token !== null ? (token as { content?: unknown }).content : token;
    if (name.endsWith("_token") && typeof text === "string") found[name] = text;
  }
  return found;
}

const mark = "Qz7mark7zQ";

/** Whether the text of a message is written, and not as a list in JSON or Python. */
function showsText(render: RenderText): boolean {
  try {
    const text = render([{ role: "user", content: mark }], {});
    return text.includes(mark) && !text.includes(`"${mark}"`) && !text.includes(`'${mark}'`);
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

function parse(source: string, owner: string, compile: typeof compileJinja): CompiledJinja {
  try {
    return compile(source);
  } catch (error) {
    throw new UserError(`the chat template of ${owner} cannot be parsed: ${messageOf(error)}`, { cause: error });
  }
}
