/**
 * Rewrites two pre-tokenizers for which the tokenizer library differs from the reference implementation (transformers'
 * Rust tokenizers) into an equivalent `Split`: the library's `Digits` knows only ASCII digits, and its `ByteLevel` treats
 * U+FEFF, but not U+0085, as a space.
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
      // The pattern must run after the prefix space is added, so a Split before it does not work.
      if (preTokenizer.use_regex === false || preTokenizer.add_prefix_space) return preTokenizer;
      return { type: "Sequence", pretokenizers: [split(byteLevelPattern), { ...preTokenizer, use_regex: false }] };
    default:
      return preTokenizer;
  }
}

/** A copy of tokenizer.json's content with which the library behaves like the reference. */
export function matchReference(content: Record<string, unknown>): Record<string, unknown> {
  const own = content.pre_tokenizer as PreTokenizer | null | undefined;
  return own ? { ...content, pre_tokenizer: matchPreTokenizer(own) } : content;
}
