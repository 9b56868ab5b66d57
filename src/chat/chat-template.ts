/** A model's chat template: which one applies, and messages to text by it. Knows nothing of tokens. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Template } from "@huggingface/jinja";
import { UserError } from "../errors.ts";
import type { ChatMessage } from "../trajectories/types.ts";
import type { TokenizerConfig } from "./tokenizer.ts";

/** For base models: the messages' contents one below the other, no roles, no turn marks. */
export const plainTemplate =
  "{% for message in messages %}{{ message['content'] }}{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}";

/** The folder's own template: chat_template.jinja, else tokenizer_config.json's (the one named "default" of several). */
export function findTemplate(directory: string, config: TokenizerConfig): string | undefined {
  const file = join(directory, "chat_template.jinja");
  if (existsSync(file)) return readFileSync(file, "utf8");
  const own = config.chat_template;
  if (own == null || typeof own === "string") return own ?? undefined;
  return own.find(({ name }) => name === "default")?.template;
}

export type RenderText = (messages: readonly ChatMessage[], addGenerationPrompt: boolean) => string;

/**
 * Renders as transformers does, but for one character: the `trim` filter also strips U+FEFF at a message's ends.
 *
 * @param owner the model's folder, for messages
 * @throws UserError when the template cannot be parsed; the returned function when it refuses the messages
 */
export function compileTemplate(source: string, config: TokenizerConfig, owner: string): RenderText {
  let template: Template;
  try {
    template = new Template(source);
  } catch (error) {
    throw new UserError(`the chat template of ${owner} cannot be parsed: ${messageOf(error)}`, { cause: error });
  }
  const named = {
    bos_token: config.bos_token,
    eos_token: config.eos_token,
    pad_token: config.pad_token,
    unk_token: config.unk_token,
  };
  // Only the tokens that exist are defined, as in transformers: templates test for them.
  const specials = Object.fromEntries(Object.entries(named).filter(([, token]) => token != null));

  return (messages, addGenerationPrompt) => {
    try {
      return template.render({
        ...specials,
        messages: messages.map((message) => ({ ...message })),
        add_generation_prompt: addGenerationPrompt,
        tools: null,
        documents: null,
      });
    } catch (error) {
      const roles = messages.map((message) => message.role).join(", ");
      throw new UserError(`the chat template of ${owner} refuses these messages (${roles}): ${messageOf(error)}`, {
        cause: error,
      });
    }
  };
}

const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error));
