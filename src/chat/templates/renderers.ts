/** Named ways of rendering conversations and parsing replies (`renderer_name`). */

import { type ReplyFormat, thinkTags } from "../formats/format.ts";
import { formats } from "../formats/formats.ts";
import { hermes } from "../formats/hermes.ts";

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
