/** Streaming decode: text is held back until it can no longer change. */
import type { IncrementalDecoder } from "../types.ts";

/**
 * A character may span tokens, and a token's text may depend on the token before it (a leading space), so each push
 * decodes the pending tokens with the context before them. Text that ends in replacement characters is held back, since
 * the next token may complete the character.
 */
export function incrementalDecoder(decode: (tokens: number[]) => string): IncrementalDecoder {
  let context: number[] = [];
  let pending: number[] = [];

  /** The pending tokens' text in context; undefined if the pending tokens change the context's own text. */
  const pendingText = (): string | undefined => {
    const before = decode(context);
    const all = decode([...context, ...pending]);
    return all.startsWith(before) ? all.slice(before.length) : undefined;
  };

  return {
    push(token) {
      pending.push(token);
      const text = pendingText();
      if (text === undefined || text === "" || text.endsWith("\uFFFD")) return "";
      context = pending;
      pending = [];
      return text;
    },
    end() {
      const text = pendingText() ?? decode(pending);
      context = [];
      pending = [];
      return text;
    },
  };
}
