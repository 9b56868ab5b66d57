/** Streaming decode over any `decode`: holds text back until it can no longer change. */
import type { IncrementalDecoder } from "./types.ts";

/**
 * A character may span tokens, and a token's text may depend on the one before it (a leading space), so a window of
 * tokens is decoded again with each push: the part before `read` is context whose text has been given out already.
 * Text is given out up to a trailing run of replacement characters, since the next token may turn those into a
 * character.
 */
export function incrementalDecoder(decode: (tokens: number[]) => string): IncrementalDecoder {
  let context: number[] = [];
  let pending: number[] = [];

  /** The pending tokens' text in context; undefined when the pending tokens changed the context's own text. */
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
