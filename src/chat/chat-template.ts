/** A model's chat template: which one applies, and messages to text by it. Knows nothing of tokens. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Template } from "@huggingface/jinja";
import { UserError } from "../errors.ts";
import { boundLoops, renderBounded } from "./bounded-template.ts";
import { withGenericTools } from "./generic-tools.ts";
import { matchPython, pythonFunctions } from "./match-jinja.ts";
import type { ChatMessage } from "./messages.ts";
import { toTemplateMessage, toTemplateTool } from "./template-messages.ts";
import type { TokenizerConfig } from "./tokenizer.ts";
import type { RenderOptions } from "./types.ts";

/** A model's templates: the one that applies, and the one that applies where tools are offered, if it is another. */
export interface TemplateSources {
  plain: string;
  tools?: string;
}

/** The folder's own: chat_template.jinja, else tokenizer_config.json's (of several: "default" and "tool_use"). */
export function findTemplate(directory: string, config: TokenizerConfig): TemplateSources | undefined {
  const file = join(directory, "chat_template.jinja");
  if (existsSync(file)) return { plain: readFileSync(file, "utf8") };
  const own = config.chat_template;
  if (own == null || typeof own === "string") return own == null ? undefined : { plain: own };
  const named = (wanted: string) => own.find(({ name }) => name === wanted)?.template;
  const [plain, tools] = [named("default"), named("tool_use")];
  return plain === undefined ? undefined : { plain, ...(tools === undefined ? {} : { tools }) };
}

export interface CompiledTemplate {
  renderText: RenderText;
  /** Whether the template has a place for tools. Without one, they are described in the system message. */
  takesTools: boolean;
}

export type RenderText = (messages: readonly ChatMessage[], options: RenderOptions) => string;

/**
 * Renders as transformers does.
 *
 * @param owner the model's folder, for messages
 * @throws UserError when the template cannot be parsed; the returned function when it refuses the messages
 */
export function compileTemplate(sources: TemplateSources, config: TokenizerConfig, owner: string): CompiledTemplate {
  const plain = parse(sources.plain, owner);
  const withTools = sources.tools === undefined ? plain : parse(sources.tools, owner);
  const named = {
    bos_token: config.bos_token,
    eos_token: config.eos_token,
    pad_token: config.pad_token,
    unk_token: config.unk_token,
  };
  // Only the tokens that exist are defined, as in transformers: templates test for them.
  const specials = Object.fromEntries(Object.entries(named).filter(([, token]) => token != null));

  let argumentsAsText = false;
  const render: RenderText = (messages, { addGenerationPrompt = true, tools = [], thinking, reasoningEffort }) => {
    try {
      const variables = {
        ...specials,
        ...pythonFunctions,
        messages: messages.map((message) => toTemplateMessage(message, argumentsAsText)),
        add_generation_prompt: addGenerationPrompt,
        tools: tools.length > 0 ? tools.map(toTemplateTool) : null,
        documents: null,
        ...(thinking === undefined ? {} : { enable_thinking: thinking }),
        ...(reasoningEffort === undefined ? {} : { reasoning_effort: reasoningEffort }),
      };
      return renderBounded(tools.length > 0 ? withTools : plain, variables, messages.length + tools.length);
    } catch (error) {
      const roles = messages.map((message) => message.role).join(", ");
      throw new UserError(`the chat template of ${owner} refuses these messages (${roles}): ${messageOf(error)}`, {
        cause: error,
      });
    }
  };

  const takesTools = showsTools(render);
  const takesSystem = takesTools || showsSystem(render);
  let argumentsKnown = false;
  const renderText: RenderText = (messages, options) => {
    const { tools = [], ...rest } = options;
    if (tools.length > 0 && !takesTools) return render(withGenericTools(messages, tools, takesSystem), rest);
    if (!argumentsKnown && messages.some(({ toolCalls }) => toolCalls?.length)) {
      argumentsKnown = true;
      argumentsAsText =
        [false, true].find((asText) => {
          argumentsAsText = asText;
          return showsArguments(render);
        }) ?? false;
    }
    return render(messages, options);
  };
  return { renderText, takesTools };
}

const mark = "Qz7mark7zQ";

function showsTools(render: RenderText): boolean {
  try {
    return render(asked, { tools: [{ name: mark }] }) !== render(asked, {});
  } catch {
    // A template that refuses a single question is reported at its first use.
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

/** Whether a call's arguments come out as JSON: most templates expect them as an object, some as text. */
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

const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error));
