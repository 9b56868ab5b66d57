/** A lower bound of a text's number of tokens from its length, so that text that is far too long is never tokenized. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer as LibraryTokenizer } from "@huggingface/tokenizers";
import { z } from "zod";
import { UserError } from "../base/errors.ts";
import { offThread } from "../base/off-thread.ts";
import { type ControlToken, secretNames, type TextGuard } from "./control-text.ts";
import { type AddedToken, checkTokenizer, correctLibrary, matchReference } from "./tokenizer-file.ts";
import type { DecodeOptions, IncrementalDecoder } from "./types.ts";

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

// Opens a model's tokenizer from its files (tokenizer.json, tokenizer_config.json).

const token = z.union([z.string(), z.looseObject({ content: z.string() }).transform((added) => added.content)]);

const configSchema = z.looseObject({
  bos_token: token.nullish(),
  eos_token: token.nullish(),
  pad_token: token.nullish(),
  unk_token: token.nullish(),
  sep_token: token.nullish(),
  cls_token: token.nullish(),
  mask_token: token.nullish(),
  added_tokens_decoder: z.record(z.string().regex(/^\d+$/), z.looseObject({ content: z.string().min(1) })).nullish(),
  clean_up_tokenization_spaces: z.boolean().nullish(),
  chat_template: z.union([z.string(), z.array(z.looseObject({ name: z.string(), template: z.string() }))]).nullish(),
});

export type TokenizerConfig = z.output<typeof configSchema>;

export interface TokenizerEncodeOptions {
  addSpecial?: boolean | undefined;
  guard?: TextGuard | undefined;
}

export interface Tokenizer {
  config: TokenizerConfig;
  /** @param options.guard what must not be taken for a control token */
  encode(text: string, options?: TokenizerEncodeOptions): Int32Array;
  /** Lower bound of the text's number of tokens, computed without encoding it. */
  leastTokens(text: string): number;
  decode(tokens: ArrayLike<number>, options?: DecodeOptions): string;
  /** The id of a token by its exact text. */
  idOf(token: string | null | undefined): number | null;
  /** The texts of its special tokens. */
  specials: readonly string[];
  /** Its added tokens: those that are found in text before the text is split. */
  added: readonly ControlToken[];
}

/** @throws UserError if the folder has no usable tokenizer */
export function openTokenizer(directory: string): Tokenizer {
  const tokenizerFile = join(directory, "tokenizer.json");
  if (!existsSync(tokenizerFile)) {
    throw new UserError(`${directory} does not contain tokenizer.json`, {
      hint: "point model.name at a model folder with a fast tokenizer; transformers writes one with AutoTokenizer.from_pretrained(...).save_pretrained(folder)",
    });
  }
  const config = readConfig(directory);
  const content = readTokenizer(directory, config);
  checkTokenizer(content, tokenizerFile);
  const open = (written: typeof content) => {
    try {
      const opened = new LibraryTokenizer(matchReference(written), config);
      correctLibrary(opened, written);
      return opened;
    } catch (error) {
      throw new UserError(`${tokenizerFile} cannot be used: ${error instanceof Error ? error.message : error}`, {
        cause: error,
      });
    }
  };
  const library = open(content);
  const guarded = openGuarded(content, open);
  // Transformers keeps spaces by default; the library removes some.
  const tidySpaces = config.clean_up_tokenization_spaces ?? false;

  const bytesPerToken = maxBytesPerToken(content);
  const { type, unk_token: unknownToken } = content.model as { type?: string; unk_token?: string };
  /** The library does not know that a model of whole words has one. */
  const unknownId =
    type === "WordLevel" && typeof unknownToken === "string" ? library.token_to_id(unknownToken) : undefined;

  return {
    config,
    leastTokens: (text) => (bytesPerToken === undefined ? 0 : Math.ceil(Buffer.byteLength(text) / bytesPerToken)),
    encode(text, { addSpecial = false, guard } = {}) {
      if (text === "" && !addSpecial) return new Int32Array(0);
      const used = guard === undefined ? { library, text } : guarded(text, guard);
      const { ids, tokens }: { ids: (number | undefined)[]; tokens: string[] } = used.library.encode(used.text, {
        add_special_tokens: addSpecial,
      });
      const unknown = unknownId === undefined ? tokens.findIndex((_, index) => ids[index] === undefined) : -1;
      if (unknown >= 0)
        throw new UserError(`the tokenizer in ${directory} has no token for ${JSON.stringify(tokens[unknown])}`);
      return Int32Array.from(ids, (id) => id ?? unknownId ?? 0);
    },
    decode(tokens, { skipSpecial = false } = {}) {
      const known = Array.from(tokens).filter((id) => library.id_to_token(id) !== undefined);
      if (known.length === 0) return "";
      return library.decode(known, { skip_special_tokens: skipSpecial, clean_up_tokenization_spaces: tidySpaces });
    },
    idOf: (name) => (name == null ? null : (library.token_to_id(name) ?? null)),
    specials: specialsOf(content),
    added: addedOf(content),
  };
}

/** Encodes text that contains control tokens which are only text. The second vocabulary is loaded at its first use. */
function openGuarded(content: Record<string, unknown>, open: (content: Record<string, unknown>) => LibraryTokenizer) {
  let key: string | undefined;
  let known: { library: LibraryTokenizer; hide: ReturnType<typeof secretNames>["hide"] } | undefined;
  return (text: string, { seams, controls }: TextGuard) => {
    const asked = JSON.stringify(controls);
    if (known === undefined || asked !== key) {
      const { rename, hide } = secretNames(controls);
      known = { library: open(rename(content)), hide };
      key = asked;
    }
    return { library: known.library, text: known.hide(text, seams) };
  };
}

/** tokenizer_config.json; the special tokens of older models are in special_tokens_map.json. */
function readConfig(directory: string): TokenizerConfig {
  const file = join(directory, "tokenizer_config.json");
  const parsed = configSchema.safeParse(existsSync(file) ? readJson(file) : {});
  if (!parsed.success)
    throw new UserError(`${file} is not a tokenizer's configuration: ${z.prettifyError(parsed.error)}`);
  const legacy = join(directory, "special_tokens_map.json");
  // As in transformers, newer models do not need it.
  if (parsed.data.added_tokens_decoder != null || !existsSync(legacy)) return parsed.data;
  const map = configSchema.safeParse(readJson(legacy));
  if (!map.success) throw new UserError(`${legacy}: ${z.prettifyError(map.error)}`);
  const named = Object.entries(map.data).filter(([name, value]) => name.endsWith("_token") && value != null);
  return { ...parsed.data, ...Object.fromEntries(named) };
}

const tokenFile = z.record(z.string(), z.unknown());

/** tokenizer.json, with the tokens that only the files beside it add, as transformers reads them. */
function readTokenizer(directory: string, config: TokenizerConfig): Record<string, unknown> {
  const file = join(directory, "tokenizer.json");
  const read = tokenFile.safeParse(readJson(file));
  if (!read.success) throw new UserError(`${file} is not an object`);
  const content = read.data;
  const known = Array.isArray(content.added_tokens) ? (content.added_tokens as AddedToken[]) : [];
  const names = new Set(known.map((token) => token?.content));
  const missing = moreTokens(directory, config).filter((token) => !names.has(token.content));
  return missing.length === 0 ? content : { ...content, added_tokens: [...known, ...missing] };
}

/** From `added_tokens_decoder` of tokenizer_config.json, else from added_tokens.json. */
function moreTokens(directory: string, config: TokenizerConfig): AddedToken[] {
  const own = config.added_tokens_decoder;
  if (own != null) return Object.entries(own).map(([id, token]) => ({ ...token, id: Number(id) }));
  const file = join(directory, "added_tokens.json");
  if (!existsSync(file)) return [];
  const parsed = z.record(z.string(), z.int().min(0)).safeParse(readJson(file));
  if (!parsed.success) throw new UserError(`${file}: ${z.prettifyError(parsed.error)}`);
  const special = new Set(Object.values(config).filter((value) => typeof value === "string"));
  return Object.entries(parsed.data).map(([content, id]) => {
    return { id, content, special: special.has(content), normalized: !special.has(content) };
  });
}

const addedTokens = z.looseObject({
  added_tokens: z.array(z.looseObject({ content: z.string(), special: z.boolean().default(false) })).default([]),
});

/** Longest first, so that a special token is found before a part of it. */
const specialsOf = (content: unknown): string[] =>
  addedOf(content)
    .filter(({ special }) => special)
    .map(({ text }) => text)
    .sort((left, right) => right.length - left.length);

function addedOf(content: unknown): ControlToken[] {
  const parsed = addedTokens.safeParse(content);
  return parsed.success ? parsed.data.added_tokens.map(({ content, special }) => ({ text: content, special })) : [];
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

// Streaming decode: text is held back until it can no longer change.

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

// Encodes long texts on other threads, since a long document blocks the event loop for milliseconds.

/** The tokenizers of this thread, by folder. */
const tokenizers = new Map<string, Tokenizer>();

/** @returns tokens, or the message of a UserError, since error classes are lost between threads */
export function encodeOnThisThread(
  directory: string,
  text: string,
  options?: TokenizerEncodeOptions,
): Int32Array | string {
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
  async (text: string, options: TokenizerEncodeOptions, signal?: AbortSignal): Promise<Int32Array> => {
    if (text.length > longestText) {
      throw new UserError(
        `a text of ${text.length} characters is too long to tokenize; the limit is ${longestText} characters`,
      );
    }
    const answer = await onAnother([directory, text, options], signal);
    if (typeof answer === "string") throw new UserError(answer);
    return answer;
  };
