/** Named ways of rendering conversations and parsing replies (`renderer_name`). */
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { z } from "zod";
import { messageOf, UserError } from "../base/errors.ts";
import { importModule } from "../base/import-module.ts";
import { bridge } from "./conversation.ts";
import type { ChatMessage, ToolDefinition } from "./messages.ts";
import { allOrProblem, between, callFromValue, type ReadBody, type ReplyFormat, thinkTags } from "./reply-format.ts";
import { formats, hermes } from "./reply-formats.ts";
import type { Chat, RenderOptions } from "./types.ts";

export interface Renderer extends ReplyFormat {
  /** Replaces the model's own template. */
  template?: string;
  /** Tokens that the template writes and that the model must have. */
  needs?: readonly string[];
  /** The tokenizer adds its BOS, since the template does not. */
  addSpecial?: boolean;
}

/** For base models: one message per line, without roles and turn marks. */
const plainTemplate =
  "{% for message in messages %}{{ message['content'] }}{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}";

/** ChatML with tools in the format of Hermes. It keeps earlier thinking, so conversations are append-only. */
const hermesTemplate = `{%- set own = messages[0].role == 'system' %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if own %}{{- messages[0].content + '\\n\\n' }}{% endif %}
    {{- 'You can call these functions:\\n<tools>\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- '\\n' }}
    {%- endfor %}
    {{- '</tools>\\nTo call one, write its name and arguments as JSON between tags:\\n' }}
    {{- '<tool_call>\\n{"name": "...", "arguments": {...}}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (loop.first and own and tools) %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.role == 'tool' %}
            {{- '<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- else %}
            {%- if message.reasoning_content %}
                {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
            {%- endif %}
            {{- message.content }}
            {%- for call in message.tool_calls or [] %}
                {%- if message.content or not loop.first %}{{- '\\n' }}{% endif %}
                {{- '<tool_call>\\n{"name": ' }}
                {{- call.function.name | tojson }}
                {{- ', "arguments": ' }}
                {{- call.function.arguments | tojson }}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}`;

/** Without a `template`, a renderer uses the model's own and only selects how replies are parsed. */
export const renderers = {
  plain: { template: plainTemplate, addSpecial: true },
  hermes: {
    thinking: thinkTags,
    calls: hermes,
    template: hermesTemplate,
    needs: ["<|im_start|>", "<|im_end|>"],
  },
  qwen: { calls: hermes },
  deepseek_r1: { thinking: thinkTags },
  gemma: {},
  ...formats,
} as const satisfies Record<string, Renderer>;

// A renderer of the user's, for a model whose format Hone does not know: `rollout_engine.renderer_name=./my-renderer.ts`.

/** How a family of models writes thinking and tool calls. */
export interface RendererDefinition {
  /** The texts around the thinking, e.g. `<think>` and `</think>`. Absent: the model does not think. */
  thinking?: { open: string; close: string };
  /** How a tool call is written. Absent: the model does not call tools. */
  calls?: {
    /** The texts around a call, or around a list of calls. */
    open: string;
    close: string;
    /**
     * Reads the text between them. An error that it throws makes the call malformed: its text stays in the reply, and the
     * message says why.
     */
    read(body: string, tools: readonly ToolDefinition[]): DefinedCall | readonly DefinedCall[];
  };
  /** Tokens that end a reply, besides those that the template writes after it and those of generation_config.json. */
  ends?: readonly string[];
  /** A chat template that replaces the model's own. */
  template?: string;
}

interface DefinedCall {
  name: string;
  arguments: Record<string, unknown>;
}

const text = z.string().min(1);

const schema = z.strictObject({
  thinking: z.strictObject({ open: text, close: text }).optional(),
  calls: z.strictObject({ open: text, close: text, read: z.custom((value) => typeof value === "function") }).optional(),
  ends: z.array(text).optional(),
  template: text.optional(),
});

const defined = new WeakSet<object>();

/**
 * Describes how a model writes thinking and tool calls, for `export default`.
 *
 * @example
 * export default defineRenderer({
 *   thinking: { open: "<thought>", close: "</thought>" },
 *   calls: { open: "<call>", close: "</call>", read: (body) => JSON.parse(body) },
 * });
 * @throws UserError if the definition has an unknown key or an empty text
 */
export function defineRenderer(definition: RendererDefinition): Renderer {
  const parsed = schema.safeParse(definition);
  if (!parsed.success) throw new UserError(`defineRenderer: ${z.prettifyError(parsed.error)}`);
  const { thinking, calls, ends, template } = definition;
  const renderer: Renderer = {
    ...(thinking ? { thinking } : {}),
    ...(calls ? { calls: { starts: [calls.open], read: between(calls.open, calls.close, readWith(calls.read)) } } : {}),
    ...(ends ? { ends } : {}),
    ...(template === undefined ? {} : { template }),
  };
  defined.add(renderer);
  return renderer;
}

const readWith =
  (read: NonNullable<RendererDefinition["calls"]>["read"]): ReadBody =>
  (body, tools) => {
    let found: unknown;
    try {
      found = read(body, tools);
    } catch (error) {
      return messageOf(error);
    }
    return allOrProblem([found].flat().map((call) => callFromValue(call, ["arguments"])));
  };

/** @throws UserError if the file is missing or broken, or its default export is not a renderer */
export async function loadRenderer(file: string): Promise<Renderer> {
  const key = `rollout_engine.renderer_name=${file}`;
  const path = resolve(file);
  if (!existsSync(path)) throw new UserError(`${key}: the file does not exist`, { hint: `looked for ${path}` });
  const { default: renderer } = await importModule(path);
  if (typeof renderer === "object" && renderer !== null && defined.has(renderer)) return renderer as Renderer;
  throw new UserError(`${key}: its default export is not a renderer`, {
    hint: "write export default defineRenderer({ ... })",
  });
}

// Tests on a few short conversations whether a chat template only ever appends to them.

/** How a template changes earlier turns when a conversation continues. */
export interface TemplateCheck {
  /** It drops the thinking of earlier replies. */
  dropsReasoning: boolean;
  /** It renders earlier turns differently after later ones. Hone keeps the original tokens. */
  rewrites: boolean;
  /** It does not mark the end of a reply, so each turn is rendered completely and starts a new sequence. */
  notContinuable: boolean;
  /** The template's error if it refuses a second question. */
  refuses?: string;
}

const asked: ChatMessage = { role: "user", content: "one?" };
const tools = [{ name: "try", description: "a tool" }];
const next: ChatMessage = { role: "user", content: "two?" };

export function checkTemplate(chat: Chat): TemplateCheck {
  const answer: ChatMessage = { role: "assistant", content: "answer" };
  const thinks = chat.format.thinking !== undefined;
  try {
    const found = bridge(chat, [asked, thinks ? { ...answer, reasoning: "thought" } : answer], new Set(), [next], {});
    return {
      dropsReasoning: found?.dropsReasoning ?? false,
      rewrites: rewrites(chat, answer, {}) || (takesTools(chat) && rewrites(chat, answer, { tools })),
      notContinuable: found === null,
    };
  } catch (error) {
    if (!(error instanceof UserError)) throw error;
    return { dropsReasoning: false, rewrites: false, notContinuable: false, refuses: error.message };
  }
}

function rewrites(chat: Chat, answer: ChatMessage, options: RenderOptions): boolean {
  const begun = chat.renderText([asked], options).trimEnd();
  // The thinking that a generation prompt opens, or closes at once, may be dropped later.
  const { open = "", close = "" } = chat.format.thinking ?? {};
  const closed = begun.endsWith(close) ? begun.slice(0, begun.length - close.length).trimEnd() : begun;
  const header = (closed.endsWith(open) ? closed.slice(0, closed.length - open.length) : begun).trimEnd();
  return !chat.renderText([asked, answer, next], options).startsWith(header);
}

function takesTools(chat: Chat): boolean {
  try {
    return chat.renderText([asked], { tools }) !== "";
  } catch {
    return false;
  }
}

/** The findings as sentences. */
export function describeTemplate(found: TemplateCheck, chat: Chat): string[] {
  const { dropsReasoning, rewrites, notContinuable, refuses } = found;
  const lines: string[] = [];
  if (refuses !== undefined) lines.push(`conversations of several turns are not possible: ${refuses}`);
  if (dropsReasoning && !chat.accumulateReasoning) {
    lines.push(
      "the chat template drops earlier thinking, so each further turn of a conversation starts a new sequence; rllm.accumulate_reasoning=true keeps it in one",
    );
  }
  if (rewrites) {
    lines.push("the chat template renders earlier turns differently after later ones; Hone keeps the sampled tokens");
  }
  if (notContinuable) {
    lines.push(
      "the chat template does not mark the end of a reply, so each turn of a conversation starts a new sequence",
    );
  }
  return lines;
}
