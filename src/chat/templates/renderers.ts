/** Named ways of rendering conversations and parsing replies (`renderer_name`). */

import { hermes } from "../formats/hermes.ts";
import { llama3 } from "../formats/llama3.ts";
import { mistral } from "../formats/mistral.ts";
import type { ReplySyntax } from "../parse-reply.ts";
import type { TemplateSources } from "./chat-template.ts";

export interface Renderer {
  syntax: ReplySyntax;
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
  plain: { syntax: { thinks: false, calls: undefined }, template: plainTemplate, addSpecial: true },
  hermes: {
    syntax: { thinks: true, calls: hermes },
    template: hermesTemplate,
    needs: ["<|im_start|>", "<|im_end|>"],
  },
  qwen: { syntax: { thinks: false, calls: hermes } },
  qwen3: { syntax: { thinks: true, calls: hermes } },
  llama3: { syntax: { thinks: false, calls: llama3 } },
  mistral: { syntax: { thinks: false, calls: mistral } },
  deepseek_r1: { syntax: { thinks: true, calls: undefined } },
  gemma: { syntax: { thinks: false, calls: undefined } },
} as const satisfies Record<string, Renderer>;

/** How a model's replies are parsed, detected from its template. */
export function syntaxOf({ plain, tools = plain }: TemplateSources): ReplySyntax {
  const formats = [
    ["<tool_call>", hermes],
    ["[TOOL_CALLS]", mistral],
    ["<|start_header_id|>", llama3],
  ] as const;
  return { thinks: plain.includes("</think>"), calls: formats.find(([mark]) => tools.includes(mark))?.[1] };
}
