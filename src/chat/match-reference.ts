/**
 * Rewrites the two pre-tokenizers that the tokenizer library splits differently from the reference implementation
 * (transformers' Rust tokenizers) into an equivalent `Split`, whose character classes it translates faithfully:
 * `Digits` knows ASCII digits only there, and `ByteLevel` takes U+FEFF for a space and U+0085 for none.
 */

interface PreTokenizer {
  type?: string;
  individual_digits?: boolean;
  add_prefix_space?: boolean;
  use_regex?: boolean;
  pretokenizers?: PreTokenizer[];
}

/** GPT-2's pattern, which `ByteLevel` applies unless `use_regex` is false. */
const byteLevelPattern = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

const split = (regex: string) => ({ type: "Split", pattern: { Regex: regex }, behavior: "Isolated", invert: false });

function matchPreTokenizer(preTokenizer: PreTokenizer): PreTokenizer {
  switch (preTokenizer.type) {
    case "Sequence":
      return { ...preTokenizer, pretokenizers: (preTokenizer.pretokenizers ?? []).map(matchPreTokenizer) };
    case "Digits":
      return split(preTokenizer.individual_digits ? "\\p{N}" : "\\p{N}+");
    case "ByteLevel":
      // With a prefix space the pattern must run after the space was put in, which a Split before it cannot.
      if (preTokenizer.use_regex === false || preTokenizer.add_prefix_space) return preTokenizer;
      return { type: "Sequence", pretokenizers: [split(byteLevelPattern), { ...preTokenizer, use_regex: false }] };
    default:
      return preTokenizer;
  }
}

/** A copy of tokenizer.json's content that the library reads as the reference does. */
export function matchReference(content: Record<string, unknown>): Record<string, unknown> {
  const own = content.pre_tokenizer as PreTokenizer | null | undefined;
  return own ? { ...content, pre_tokenizer: matchPreTokenizer(own) } : content;
}
