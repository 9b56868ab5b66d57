/** Text <-> tokens, nothing else: what a model's tokenizer and chat template do, without the model. */
import type { ChatMessage } from "../trajectories/types.ts";

export interface RenderOptions {
  /** End with the header of the assistant's turn, so that the model answers. Default true. */
  addGenerationPrompt?: boolean;
}

export interface DecodeOptions {
  /** Leave special tokens (turn marks, end of text) out. Default false. */
  skipSpecial?: boolean;
}

/** Turns tokens into text as they arrive; the pieces concatenated are `decode` of all of them. */
export interface IncrementalDecoder {
  /** Text that this token completed; empty while a character is still incomplete. */
  push(token: number): string;
  /** What was held back, with replacement characters for what never became a character. */
  end(): string;
}

export interface Chat {
  /**
   * `[P]` token ids of a conversation. Special tokens are recognised wherever the rendered text spells them, in a
   * message too, as transformers' `apply_chat_template` does; no token is added that the template does not write.
   * @throws UserError when the template refuses the messages
   */
  render(messages: readonly ChatMessage[], options?: RenderOptions): Int32Array;
  /** The conversation as the text that `render` encodes. */
  renderText(messages: readonly ChatMessage[], options?: RenderOptions): string;
  /** Plain text to token ids. `addSpecial`: with the tokens that the tokenizer itself puts around a text (e.g. BOS). */
  encode(text: string, options?: { addSpecial?: boolean }): Int32Array;
  /** Ids that the tokenizer does not know (a padded vocabulary has some) decode to nothing. */
  decode(tokens: ArrayLike<number>, options?: DecodeOptions): string;
  incrementalDecoder(options?: DecodeOptions): IncrementalDecoder;
  readonly bosId: number | null;
  readonly eosId: number | null;
  readonly padId: number | null;
}
