/** A model's chat template: which one applies, and messages to text by it. Knows nothing of tokens. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Template } from "@huggingface/jinja";
import { UserError } from "../errors.ts";
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

export type RenderText = (messages: readonly ChatMessage[], options: RenderOptions) => string;

/**
 * Renders as transformers does.
 *
 * @param owner the model's folder, for messages
 * @throws UserError when the template cannot be parsed; the returned function when it refuses the messages, or has no
 * place for tools that are offered
 */
export function compileTemplate(sources: TemplateSources, config: TokenizerConfig, owner: string): RenderText {
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
      return (tools.length > 0 ? withTools : plain).render({
        ...specials,
        ...pythonFunctions,
        messages: messages.map((message) => toTemplateMessage(message, argumentsAsText)),
        add_generation_prompt: addGenerationPrompt,
        tools: tools.length > 0 ? tools.map(toTemplateTool) : null,
        documents: null,
        ...(thinking === undefined ? {} : { enable_thinking: thinking }),
        ...(reasoningEffort === undefined ? {} : { reasoning_effort: reasoningEffort }),
      });
    } catch (error) {
      const roles = messages.map((message) => message.role).join(", ");
      throw new UserError(`the chat template of ${owner} refuses these messages (${roles}): ${messageOf(error)}`, {
        cause: error,
      });
    }
  };

  let takesTools: boolean | undefined;
  let argumentsKnown = false;
  return (messages, options) => {
    if (!argumentsKnown && messages.some(({ toolCalls }) => toolCalls?.length)) {
      argumentsKnown = true;
      argumentsAsText =
        [false, true].find((asText) => {
          argumentsAsText = asText;
          return showsArguments(render);
        }) ?? false;
    }
    if (options.tools?.length) {
      const { tools, ...rest } = options;
      takesTools ??= render(asked, options) !== render(asked, rest);
      if (!takesTools) {
        throw new UserError(`the chat template of ${owner} has no place for tools`, {
          hint: "offer none, or choose another format by hand, e.g. rollout_engine.renderer_name=hermes",
        });
      }
    }
    return render(messages, options);
  };
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
    return template;
  } catch (error) {
    throw new UserError(`the chat template of ${owner} cannot be parsed: ${messageOf(error)}`, { cause: error });
  }
}

const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error));
