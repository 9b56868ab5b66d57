/** How few tokens a text can become, known from its length alone: text that is far too long is never tokenized. */

/** A text that becomes more tokens than the caller can use. */
export class TextTooLong extends Error {
  override name = "TextTooLong";
  /** It becomes at least so many. */
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
 * @returns bytes of text that one token stands for at most; undefined where the tokenizer may drop text, or merge any
 * length of it into one token
 */
export function mostBytesPerToken(file: unknown): number | undefined {
  const { model, normalizer, pre_tokenizer: preTokenizer, added_tokens: added = [] } = file as TokenizerFile;
  const byteLevel = hasStep(preTokenizer, "ByteLevel");
  const losesNothing = model?.type === "BPE" && (byteLevel || model.byte_fallback === true) && keepsText(preTokenizer);
  const shrinks = shrinkingOf(normalizer);
  if (!losesNothing || shrinks === undefined || added.some(({ lstrip, rstrip }) => lstrip || rstrip)) return undefined;
  let longest = 1;
  for (const { content } of added) longest = Math.max(longest, Buffer.byteLength(content));
  // A character of a byte-level token is a byte.
  const bytesOf = byteLevel ? (token: string) => token.length : (token: string) => Buffer.byteLength(token);
  for (const token of Object.keys(model.vocab ?? {})) longest = Math.max(longest, bytesOf(token));
  return longest * shrinks;
}

/** NFC writes some characters in a third of their bytes, and none in less. */
const nfcShrinking = 3;

/** How many times shorter a text may become before it is split; undefined: any. */
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
