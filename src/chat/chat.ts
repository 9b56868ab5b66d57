/** Opens a model folder's tokenizer and chat template as one `Chat`. */
import { UserError } from "../errors.ts";
import { compileTemplate, findTemplate, plainTemplate } from "./chat-template.ts";
import { incrementalDecoder } from "./incremental-decoder.ts";
import { openTokenizer } from "./tokenizer.ts";
import type { Chat } from "./types.ts";

export type { Chat } from "./types.ts";

export interface LoadChatOptions {
  /**
   * What to do with a model that has no chat template (a base model): refuse it, or put the messages' contents one
   * below the other, which is said through `log`. Default "refuse".
   */
  withoutTemplate?: "refuse" | "plain";
  log?: (line: string) => void;
}

/**
 * @param directory holds tokenizer.json, tokenizer_config.json and, in recent models, chat_template.jinja
 * @throws UserError when the files are missing, broken or have no chat template
 */
export function loadChat(directory: string, options: LoadChatOptions = {}): Chat {
  const tokenizer = openTokenizer(directory);
  const own = findTemplate(directory, tokenizer.config);
  if (own === undefined) {
    if (options.withoutTemplate !== "plain") {
      throw new UserError(`the model in ${directory} has no chat template; it is probably a base model`, {
        hint: "use the instruct version of the model, or put a chat_template.jinja that fits it into the folder",
      });
    }
    options.log?.(`${directory} has no chat template: messages are put one below the other, without roles`);
  }
  const text = compileTemplate(own ?? plainTemplate, tokenizer.config, directory);
  const renderText: Chat["renderText"] = (messages, { addGenerationPrompt = true } = {}) =>
    text(messages, addGenerationPrompt);

  return {
    // A chat template writes its own BOS; the plain one leaves that to the tokenizer.
    render: (messages, render) => tokenizer.encode(renderText(messages, render), { addSpecial: own === undefined }),
    renderText,
    encode: tokenizer.encode,
    decode: tokenizer.decode,
    incrementalDecoder: (decode) => incrementalDecoder((tokens) => tokenizer.decode(tokens, decode)),
    bosId: tokenizer.idOf(tokenizer.config.bos_token),
    eosId: tokenizer.idOf(tokenizer.config.eos_token),
    padId: tokenizer.idOf(tokenizer.config.pad_token),
  };
}
