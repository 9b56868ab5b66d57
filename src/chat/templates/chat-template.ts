/** Finds a model's chat template and renders messages as text. Works without tokens. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Template } from "@huggingface/jinja";
import { messageOf, UserError } from "../../errors.ts";
import type { ReplyFormat } from "../formats/format.ts";
import type { ChatMessage } from "../messages.ts";
import { readJson, type TokenizerConfig } from "../tokens/tokenizer.ts";
import type { RenderOptions } from "../types.ts";
import { boundLoops, renderBounded } from "./bounded-template.ts";
import { withGenericTools } from "./generic-tools.ts";
import { matchPython, pythonFunctions } from "./match-jinja.ts";
import { type TemplateHabits, toTemplateMessages, toTemplateTool } from "./template-messages.ts";

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
