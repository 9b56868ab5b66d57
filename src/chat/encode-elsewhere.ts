/** Encoding on threads that have the same tokenizer: milliseconds for a long document, in which nothing else waits. */
import { UserError } from "../errors.ts";
import { offThread } from "../rewards/off-thread.ts";
import { openTokenizer, type Tokenizer } from "./tokenizer.ts";
import type { EncodeOptions } from "./types.ts";

/** Of this thread, by folder. */
const tokenizers = new Map<string, Tokenizer>();

/** @returns tokens, or what the user should know: errors' classes do not pass between threads */
export function encodeOnThisThread(directory: string, text: string, options?: EncodeOptions): Int32Array | string {
  try {
    const tokenizer = tokenizers.get(directory) ?? openTokenizer(directory);
    tokenizers.set(directory, tokenizer);
    return tokenizer.encode(text, options);
  } catch (error) {
    if (error instanceof UserError) return error.message;
    throw error;
  }
}

const onAnother = offThread<Parameters<typeof encodeOnThisThread>, Int32Array | string>(
  new URL(import.meta.url),
  "encodeOnThisThread",
  { timeoutSeconds: 300 },
);

/** Millions of tokens, and minutes of work. */
const longestText = 8_000_000;

/** @throws UserError as the tokenizer of the folder does, or for a text of many megabytes; the signal's reason */
export const encodeElsewhere =
  (directory: string) =>
  async (text: string, options: EncodeOptions, signal?: AbortSignal): Promise<Int32Array> => {
    if (text.length > longestText) {
      throw new UserError(`a text of ${text.length} characters is not tokenized; the limit is ${longestText}`);
    }
    const answer = await onAnother([directory, text, options], signal);
    if (typeof answer === "string") throw new UserError(answer);
    return answer;
  };
