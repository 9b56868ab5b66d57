/** Encodes long texts on other threads, since a long document blocks the event loop for milliseconds. */

import { offThread } from "../../concurrency/off-thread.ts";
import { UserError } from "../../errors.ts";
import type { EncodeOptions } from "../types.ts";
import { openTokenizer, type Tokenizer } from "./tokenizer.ts";

/** The tokenizers of this thread, by folder. */
const tokenizers = new Map<string, Tokenizer>();

/** @returns tokens, or the message of a UserError, since error classes are lost between threads */
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

/** In characters: millions of tokens, which take minutes. */
const longestText = 8_000_000;

/** @throws UserError if the tokenizer throws one, or for a text over the limit; the signal's reason if aborted */
export const encodeElsewhere =
  (directory: string) =>
  async (text: string, options: EncodeOptions, signal?: AbortSignal): Promise<Int32Array> => {
    if (text.length > longestText) {
      throw new UserError(
        `a text of ${text.length} characters is too long to tokenize; the limit is ${longestText} characters`,
      );
    }
    const answer = await onAnother([directory, text, options], signal);
    if (typeof answer === "string") throw new UserError(answer);
    return answer;
  };
