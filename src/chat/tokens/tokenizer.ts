/** Opens a model's tokenizer from its files (tokenizer.json, tokenizer_config.json). */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer as LibraryTokenizer } from "@huggingface/tokenizers";
import { z } from "zod";
import { UserError } from "../../errors.ts";
import type { DecodeOptions } from "../types.ts";
import { maxBytesPerToken } from "./token-bounds.ts";

const token = z.union([z.string(), z.looseObject({ content: z.string() }).transform((added) => added.content)]);

const configSchema = z.looseObject({
  bos_token: token.nullish(),
  eos_token: token.nullish(),
  pad_token: token.nullish(),
  unk_token: token.nullish(),
  clean_up_tokenization_spaces: z.boolean().nullish(),
  chat_template: z.union([z.string(), z.array(z.looseObject({ name: z.string(), template: z.string() }))]).nullish(),
});

export type TokenizerConfig = z.output<typeof configSchema>;

export interface Tokenizer {
  config: TokenizerConfig;
  encode(text: string, options?: { addSpecial?: boolean }): Int32Array;
  /** Lower bound of the text's number of tokens, computed without encoding it. */
  leastTokens(text: string): number;
  decode(tokens: ArrayLike<number>, options?: DecodeOptions): string;
  /** The id of a token by its exact text. */
  idOf(token: string | null | undefined): number | null;
  /** The texts of its special tokens. */
  specials: readonly string[];
}

/** @throws UserError if the folder has no usable tokenizer */
export function openTokenizer(directory: string): Tokenizer {
  const tokenizerFile = join(directory, "tokenizer.json");
  if (!existsSync(tokenizerFile)) {
    throw new UserError(`${directory} does not contain tokenizer.json`, {
      hint: "point model.name at a model folder with a fast tokenizer; transformers writes one with AutoTokenizer.from_pretrained(...).save_pretrained(folder)",
    });
  }
  const configFile = join(directory, "tokenizer_config.json");
  const parsed = configSchema.safeParse(existsSync(configFile) ? readJson(configFile) : {});
  if (!parsed.success)
    throw new UserError(`${configFile} is not a tokenizer's configuration: ${z.prettifyError(parsed.error)}`);
  const config = parsed.data;

  const content = readJson(tokenizerFile) as Record<string, unknown>;
  let library: LibraryTokenizer;
  try {
    library = new LibraryTokenizer(matchReference(content), config);
  } catch (error) {
    throw new UserError(`${tokenizerFile} cannot be used: ${error instanceof Error ? error.message : error}`, {
      cause: error,
    });
  }
  // Transformers keeps spaces by default; the library removes some.
  const tidySpaces = config.clean_up_tokenization_spaces ?? false;

  const bytesPerToken = maxBytesPerToken(content);

  return {
    config,
    leastTokens: (text) => (bytesPerToken === undefined ? 0 : Math.ceil(Buffer.byteLength(text) / bytesPerToken)),
    encode(text, { addSpecial = false } = {}) {
      if (text === "" && !addSpecial) return new Int32Array(0);
      const { ids, tokens }: { ids: (number | undefined)[]; tokens: string[] } = library.encode(text, {
        add_special_tokens: addSpecial,
      });
      const unknown = tokens.findIndex((_, index) => ids[index] === undefined);
      if (unknown >= 0)
        throw new UserError(`the tokenizer in ${directory} has no token for ${JSON.stringify(tokens[unknown])}`);
      return Int32Array.from(ids as number[]);
    },
    decode(tokens, { skipSpecial = false } = {}) {
      const known = Array.from(tokens).filter((id) => library.id_to_token(id) !== undefined);
      if (known.length === 0) return "";
      return library.decode(known, { skip_special_tokens: skipSpecial, clean_up_tokenization_spaces: tidySpaces });
    },
    idOf: (name) => (name == null ? null : (library.token_to_id(name) ?? null)),
    specials: specialsOf(content),
  };
}

const addedTokens = z.looseObject({
  added_tokens: z.array(z.looseObject({ content: z.string(), special: z.boolean().default(false) })).default([]),
});

/** Longest first, so that a special token is found before a part of it. */
function specialsOf(content: unknown): string[] {
  const parsed = addedTokens.safeParse(content);
  const specials = parsed.success ? parsed.data.added_tokens.filter(({ special }) => special) : [];
  return specials.map(({ content }) => content).sort((left, right) => right.length - left.length);
}

/** @throws UserError naming the file */
export function readJson(file: string): unknown {
  try {
    return JSON.parse(readFileSync(file, "utf8"));
  } catch (error) {
    throw new UserError(`cannot read ${file}: ${error instanceof Error ? error.message : error}`, {
      hint: "the file may be incomplete; download the model again",
      cause: error,
    });
  }
}

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
function matchReference(content: Record<string, unknown>): Record<string, unknown> {
  const own = content.pre_tokenizer as PreTokenizer | null | undefined;
  return own ? { ...content, pre_tokenizer: matchPreTokenizer(own) } : content;
}
