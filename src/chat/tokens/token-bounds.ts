/** A lower bound of a text's number of tokens from its length, so that text that is far too long is never tokenized. */

/** A text has more tokens than the caller can use. */
export class TextTooLong extends Error {
  override name = "TextTooLong";
  /** Lower bound of its number of tokens. */
  readonly leastTokens: number;

  constructor(leastTokens: number) {
    super(`the text is at least ${leastTokens} tokens long`);
    this.leastTokens = leastTokens;
  }
}

interface Step {
  type?: string;
  normalizers?: Step[];
  pretokenizers?: Step[];
  behavior?: string;
  pattern?: { String?: string };
  content?: string;
}

interface TokenizerFile {
  model?: { type?: string; vocab?: Record<string, number>; byte_fallback?: boolean };
  normalizer?: Step | null;
  pre_tokenizer?: Step | null;
  added_tokens?: { content: string; lstrip?: boolean; rstrip?: boolean }[];
}

/**
 * @param file content of tokenizer.json
 * @returns the largest number of bytes of text per token; undefined if the tokenizer may drop text, or merge text of any
 * length into one token
 */
export function maxBytesPerToken(file: unknown): number | undefined {
  const { model, normalizer, pre_tokenizer: preTokenizer, added_tokens: added = [] } = file as TokenizerFile;
  const byteLevel = hasStep(preTokenizer, "ByteLevel");
  const losesNothing = model?.type === "BPE" && (byteLevel || model.byte_fallback === true) && keepsText(preTokenizer);
  const shrinks = shrinkingOf(normalizer);
  if (!losesNothing || shrinks === undefined || added.some(({ lstrip, rstrip }) => lstrip || rstrip)) return undefined;
  let longest = 1;
  for (const { content } of added) longest = Math.max(longest, Buffer.byteLength(content));
  // Each character of a byte-level token stands for one byte.
  const bytesOf = byteLevel ? (token: string) => token.length : (token: string) => Buffer.byteLength(token);
  for (const token of Object.keys(model.vocab ?? {})) longest = Math.max(longest, bytesOf(token));
  return longest * shrinks;
}

/** NFC shrinks a character to a third of its bytes at most. */
const nfcShrinking = 3;

/** The largest factor by which a text may shrink before it is split; undefined if unlimited. */
function shrinkingOf(step: Step | null | undefined): number | undefined {
  switch (step?.type) {
    case undefined:
    case "Prepend":
      return 1;
    case "NFC":
      return nfcShrinking;
    case "Replace": {
      const { pattern, content = "" } = step;
      const found = pattern?.String;
      return found !== undefined && Buffer.byteLength(content) >= Buffer.byteLength(found) ? 1 : undefined;
    }
    case "Sequence":
      return (step.normalizers ?? []).map(shrinkingOf).reduce((all, one) => (all && one ? all * one : undefined), 1);
    default:
      return undefined;
  }
}

function keepsText(step: Step | null | undefined): boolean {
  switch (step?.type) {
    case undefined:
    case "ByteLevel":
    case "Digits":
    case "Metaspace":
      return true;
    case "Split":
      return step.behavior !== "Removed";
    case "Sequence":
      return (step.pretokenizers ?? []).every(keepsText);
    default:
      return false;
  }
}

const hasStep = (step: Step | null | undefined, type: string): boolean =>
  step?.type === type || (step?.pretokenizers ?? []).some((inner) => hasStep(inner, type));
