/** Text <-> tokens, nothing else: what a model's tokenizer and chat template do, without the model. */
import type { ChatMessage, ParsedReply, ToolDefinition } from "./messages.ts";

export interface RenderOptions {
  /** End with the header of the assistant's turn, so that the model answers. Default true. */
  addGenerationPrompt?: boolean;
  /** Offered to the model in the way of its template. */
  tools?: readonly ToolDefinition[];
  /** False: no thinking before the answer. Default: as the chat was loaded. */
  thinking?: boolean;
  /** How long to think, where the template knows such a word (`"low"`, `"medium"`, `"high"`). Default: as loaded. */
  reasoningEffort?: string;
}

interface ParseOptions extends Omit<RenderOptions, "addGenerationPrompt"> {
  /** Ids of the reply's tool calls; default `call_0`, `call_1`, ... */
  callId?: (index: number) => string;
}

export interface EncodeOptions {
  /** With the tokens that the tokenizer itself puts around a text (e.g. BOS). Default false. */
  addSpecial?: boolean;
}

/** For texts that may be long. */
export interface LaterOptions {
  /** A text that is sure to become more tokens is not encoded at all. */
  mostTokens?: number | undefined;
  /** Aborting ends the work on the other thread. */
  signal?: AbortSignal | undefined;
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
  /**
   * `render`, with what is long encoded on another thread, so that nothing else has to wait for it.
   * @throws TextTooLong for a text of more than `mostTokens`; the signal's reason when aborted
   */
  renderLater(messages: readonly ChatMessage[], options?: RenderOptions & LaterOptions): Promise<Int32Array>;
  /** The conversation as the text that `render` encodes. */
  renderText(messages: readonly ChatMessage[], options?: RenderOptions): string;
  /**
   * Takes a reply (its tokens, the end of turn included or not, or its text) apart into thinking, tool calls and the
   * rest, in the model's own format. Never throws for what a model may have written. `options` are those that its
   * prompt was rendered with: tool calls are looked for where tools were offered.
   */
  parse(reply: ArrayLike<number> | string, options?: ParseOptions): ParsedReply;
  /** Whether a reply to such a prompt may contain thinking. `begun`: the prompt ends within thinking. */
  thinkingOf(options?: RenderOptions): "never" | "possible" | "begun";
  /** Removes the texts of special tokens, as `parse` does. */
  withoutSpecials(text: string): string;
  /** Plain text to token ids. */
  encode(text: string, options?: EncodeOptions): Int32Array;
  /** `encode`, as `renderLater` does it. */
  encodeLater(text: string, options?: EncodeOptions & LaterOptions): Promise<Int32Array>;
  /** Ids that the tokenizer does not know (a padded vocabulary has some) decode to nothing. */
  decode(tokens: ArrayLike<number>, options?: DecodeOptions): string;
  incrementalDecoder(options?: DecodeOptions): IncrementalDecoder;
  readonly bosId: number | null;
  readonly eosId: number | null;
  readonly padId: number | null;
  /** Tokens that end an assistant's turn. */
  readonly stopIds: readonly number[];
  /** Multi-turn prompts keep the thinking of earlier replies even where the template would drop it. */
  readonly accumulateReasoning: boolean;
  /** The token that the template writes after an assistant's message; the plain template of base models has none. */
  readonly turnEnd: string | undefined;
}
