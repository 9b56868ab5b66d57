/** The interface of a model's tokenizer and chat template: text <-> tokens. */
import type { ChatMessage, ParsedReply, ToolDefinition } from "./messages.ts";
import type { ReplyFormat } from "./reply-format.ts";

export interface RenderOptions {
  /** End with the header of the assistant's turn, so that the model answers. Default true. */
  addGenerationPrompt?: boolean | undefined;
  /** Offered to the model in the format of its template. */
  tools?: readonly ToolDefinition[];
  /** `false` turns thinking off. Default: the setting that the chat was loaded with. */
  thinking?: boolean | undefined;
  /** `"low"`, `"medium"` or `"high"`, if the template supports it. Default: the setting that the chat was loaded with. */
  reasoningEffort?: string | undefined;
}

/** For conversations with text from outside: see `control-text.ts`. */
export interface GuardOptions {
  /** Control tokens in the text of messages, calls and tools become ordinary tokens. Default false. */
  guardText?: boolean | undefined;
  /** Called with how many there were, if any. */
  onTextMarks?: ((count: number) => void) | undefined;
}

/** A rendered text in which `seam` marks text that must not be taken for control tokens. */
export interface GuardedText {
  text: string;
  seam: string | undefined;
}

interface ParseOptions extends Omit<RenderOptions, "addGenerationPrompt"> {
  /** Ids of the reply's tool calls; default `call_0`, `call_1`, ... */
  callId?: (index: number) => string;
}

export interface EncodeOptions {
  /** Add the tokens that the tokenizer puts around a text (e.g. BOS). Default false. */
  addSpecial?: boolean | undefined;
  /** Of the text, see `GuardedText`. */
  seam?: string | undefined;
  onTextMarks?: GuardOptions["onTextMarks"];
}

/** For texts that may be long. */
export interface LaterOptions {
  /** A text that certainly has more tokens is not encoded. */
  maxPromptTokens?: number | undefined;
  /** Aborting ends the work on the other thread. */
  signal?: AbortSignal | undefined;
}

export interface DecodeOptions {
  /** Drop special tokens (turn marks, end of text). Default false. */
  skipSpecial?: boolean;
}

/** Turns tokens into text as they arrive; the pieces concatenated are `decode` of all of them. */
export interface IncrementalDecoder {
  /** Text that this token completed; empty while a character is still incomplete. */
  push(token: number): string;
  /** The remaining text, with replacement characters for incomplete characters. */
  end(): string;
}

export interface Chat {
  /**
   * `[P]` token ids of a conversation. Without `guardText`, special tokens are recognized anywhere in the rendered text, also in
   * messages, as in transformers' `apply_chat_template`. No token is added that the template does not write.
   * @throws UserError if the template refuses the messages
   */
  render(messages: readonly ChatMessage[], options?: RenderOptions & GuardOptions): Int32Array;
  /**
   * `render`, with long texts encoded on another thread.
   * @throws TextTooLong for a text of more than `maxPromptTokens`; the signal's reason if aborted
   */
  renderLater(
    messages: readonly ChatMessage[],
    options?: RenderOptions & GuardOptions & LaterOptions,
  ): Promise<Int32Array>;
  /** The conversation as the text that `render` encodes. */
  renderText(messages: readonly ChatMessage[], options?: RenderOptions): string;
  /** The same, with the seams of `guardText`. */
  renderGuarded(messages: readonly ChatMessage[], options?: RenderOptions & GuardOptions): GuardedText;
  /**
   * Parses a reply (its text, or its tokens with or without the end of turn) into thinking, tool calls and content, in the
   * model's own format. Never throws, regardless of the reply. Pass the `options` of its prompt: tool calls are parsed only
   * if tools were offered.
   */
  parse(reply: ArrayLike<number> | string, options?: ParseOptions): ParsedReply;
  /** How the model writes thinking and tool calls. */
  readonly format: ReplyFormat;
  /** Whether a reply to a prompt with these options may contain thinking. `begun`: the prompt opens the thinking. */
  thinkingOf(options?: RenderOptions): "never" | "possible" | "begun";
  /** Removes the texts of special tokens, as `parse` does. */
  withoutSpecials(text: string): string;
  /** Plain text to token ids. */
  encode(text: string, options?: EncodeOptions): Int32Array;
  /** `encode`, with long texts encoded on another thread. */
  encodeLater(text: string, options?: EncodeOptions & LaterOptions): Promise<Int32Array>;
  /** Unknown ids, e.g. of a padded vocabulary, decode to an empty text. */
  decode(tokens: ArrayLike<number>, options?: DecodeOptions): string;
  incrementalDecoder(options?: DecodeOptions): IncrementalDecoder;
  readonly bosId: number | null;
  readonly eosId: number | null;
  readonly padId: number | null;
  /** Tokens that end an assistant's turn. */
  readonly stopIds: readonly number[];
  /** Prompts keep the thinking of earlier replies even if the template drops it. */
  readonly accumulateReasoning: boolean;
  /** Conversations with text from outside are rendered with `guardText`. */
  readonly guardsText: boolean;
  /** The token that ends a reply in a conversation; undefined for the plain template of base models. */
  readonly turnEnd: string | undefined;
  /** What the template may write after a reply: `turnEnd`, or another token in earlier turns. */
  readonly turnEnds: readonly string[];
  /** Those of `stopIds` that are also the header of the next turn. */
  readonly sharedStopIds: readonly number[];
}
