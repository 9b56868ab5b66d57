/**
 * Checks a tokenizer.json, and corrects what the tokenizer library does differently from the reference implementation
 * (transformers' Rust tokenizers). The file comes from strangers: what could make encoding endless is refused.
 */

import type { Tokenizer as Library } from "@huggingface/tokenizers";
import { UserError } from "../base/errors.ts";

/** A normalizer, pre-tokenizer or decoder. */
interface Step {
  type?: string;
  pattern?: { Regex?: string; String?: string };
  content?: string;
  prepend?: string;
  behavior?: string;
  invert?: boolean;
  delimiter?: string;
  individual_digits?: boolean;
  add_prefix_space?: boolean;
  use_regex?: boolean;
  strip_left?: boolean;
  strip_right?: boolean;
  prepend_scheme?: string;
  normalizers?: Step[];
  pretokenizers?: Step[];
}

export interface AddedToken {
  id: number;
  content: string;
  single_word?: boolean;
  lstrip?: boolean;
  rstrip?: boolean;
  normalized?: boolean;
  special?: boolean;
}

// What is refused.

/** The largest vocabularies have 262,144 tokens. */
const mostTokens = 2 ** 19;
/** Of the texts that a normalizer makes, relative to the given one. The real ones are below 4. */
const mostGrowth = 64;
/** Of unlimited repetitions in a row: each multiplies the time of a text that does not match by its length. */
const mostRepetitions = 4;

/** @throws UserError with the file and the key if a part is not of its form, or would take unlimited time */
export function checkTokenizer(content: Record<string, unknown>, file: string): void {
  const refuse = (key: string, reason: string): never => {
    throw new UserError(`${file}: ${key} ${reason}`, { hint: "download the model again, or use another one" });
  };
  const isObject = (value: unknown): value is Record<string, unknown> =>
    typeof value === "object" && value !== null && !Array.isArray(value);

  const { model, added_tokens: added = [] } = content;
  if (!isObject(model)) throw refuse("model", "is missing or not an object");
  const { vocab, merges } = model;
  if (typeof vocab !== "object" || vocab === null) throw refuse("model.vocab", "is missing or not an object");
  const size = Array.isArray(vocab) ? vocab.length : Object.keys(vocab).length;
  if (size > mostTokens) refuse("model.vocab", `has ${size} tokens; the limit is ${mostTokens}`);
  const isId = (id: unknown) => Number.isInteger(id) && (id as number) >= 0 && (id as number) < 2 ** 28;
  if (!Array.isArray(vocab)) {
    for (const [token, id] of Object.entries(vocab)) {
      if (!isId(id)) refuse(`model.vocab[${JSON.stringify(token)}]`, `is ${JSON.stringify(id)}, not the id of a token`);
    }
  } else {
    const wrong = vocab.findIndex(
      (one) => !Array.isArray(one) || typeof one[0] !== "string" || typeof one[1] !== "number",
    );
    if (wrong >= 0) refuse(`model.vocab[${wrong}]`, "is not a token with its score");
  }
  if (merges !== undefined && !Array.isArray(merges)) refuse("model.merges", "is not a list");
  if (Array.isArray(merges)) {
    if (merges.length > 2 * mostTokens)
      refuse("model.merges", `has ${merges.length} entries; the limit is ${2 * mostTokens}`);
    const isPair = (one: unknown) =>
      typeof one === "string"
        ? one.includes(" ")
        : Array.isArray(one) && one.length === 2 && one.every((part) => typeof part === "string");
    const wrong = merges.findIndex((one) => !isPair(one) || typeof one !== typeof merges[0]);
    if (wrong >= 0) refuse(`model.merges[${wrong}]`, `is ${JSON.stringify(merges[wrong])}, not two tokens`);
  }
  if (!Array.isArray(added)) throw refuse("added_tokens", "is not a list");
  if (added.length > mostTokens) refuse("added_tokens", `has ${added.length} tokens; the limit is ${mostTokens}`);
  for (const [index, one] of added.entries()) {
    if (!isObject(one) || typeof one.content !== "string" || one.content === "" || !isId(one.id)) {
      refuse(`added_tokens[${index}]`, "is not a token with content and id");
    }
  }
  for (const key of ["normalizer", "pre_tokenizer", "post_processor", "decoder"] as const) {
    const step = content[key];
    if (step === undefined || step === null) continue;
    if (!isObject(step)) refuse(key, "is not an object");
    checkStep(step as Step, key, refuse);
  }
  const growth = growthOf((content.normalizer ?? {}) as Step);
  if (growth > mostGrowth)
    refuse("normalizer", `can make a text ${growth > 1e6 ? "over a million" : growth} times longer`);
}

function checkStep(step: Step, key: string, refuse: (key: string, reason: string) => never, depth = 0): void {
  if (depth > 20) refuse(key, "is nested too deeply");
  const regex = step.pattern?.Regex;
  if (regex !== undefined) {
    const problem = typeof regex !== "string" ? "is not a text" : endlessRegex(regex);
    if (problem) refuse(`${key}.pattern.Regex`, problem);
  }
  for (const name of ["normalizers", "pretokenizers", "decoders", "processors"] as const) {
    const inner = (step as Record<string, unknown>)[name];
    if (inner === undefined) continue;
    if (!Array.isArray(inner) || inner.length > 100) refuse(`${key}.${name}`, "is not a list of at most 100 steps");
    for (const [index, one] of (inner as unknown[]).entries()) {
      if (typeof one !== "object" || one === null) refuse(`${key}.${name}[${index}]`, "is not an object");
      checkStep(one as Step, `${key}.${name}[${index}]`, refuse, depth + 1);
    }
  }
}

/** How many times longer a normalizer can make a text. */
function growthOf(step: Step): number {
  if (step.normalizers) return step.normalizers.reduce((all, one) => all * growthOf(one), 1);
  if (step.type === "Prepend") return 1 + (step.prepend?.length ?? 0) / 100;
  if (step.type !== "Replace") return 1;
  const found = step.pattern?.String?.length ?? 1;
  return Math.max(1, (step.content?.length ?? 0) / Math.max(1, found));
}

/**
 * Why a regular expression may take endless time for some text: a repeated group that repeats or chooses inside, or too many
 * unlimited repetitions in a row. Patterns of real tokenizers have neither.
 */
export function endlessRegex(source: string): string | undefined {
  if (source.length > 20_000) return `has ${source.length} characters`;
  interface Group {
    repeats: boolean;
    chooses: boolean;
    row: number;
  }
  const open: Group[] = [{ repeats: false, chooses: false, row: 0 }];
  let last: Group | undefined;
  for (let at = 0; at < source.length; at++) {
    const group = open.at(-1) as Group;
    const letter = source[at];
    const repetition = /^(?:[*+]|\{(\d*)(,?)(\d*)\})/.exec(source.slice(at, at + 24));
    if (repetition) {
      const [all, least = "", comma = "", most = ""] = repetition;
      const unlimited = all === "*" || all === "+" || (comma !== "" && most === "");
      const many = unlimited || Number(most || least) > 8;
      if (Number(most || least) > 1000) return `repeats ${all}`;
      if (many && last && (last.repeats || (last.chooses && unlimited))) {
        return "repeats a group that repeats or has alternatives inside, which may take endless time";
      }
      if (unlimited) {
        group.repeats = true;
        group.row++;
        if (group.row > mostRepetitions) return "has too many unlimited repetitions in a row";
      }
      at += all.length - 1;
      // A second sign makes the repetition lazy or possessive.
      if (source[at + 1] === "?" || source[at + 1] === "+") at++;
      last = undefined;
      continue;
    }
    last = undefined;
    if (letter === "\\") {
      const property = /^\\[pP]\{[^}]*\}/.exec(source.slice(at, at + 64));
      at += property ? property[0].length - 1 : 1;
    } else if (letter === "[") {
      for (let depth = 0; at < source.length; at++) {
        if (source[at] === "\\") at++;
        else if (source[at] === "[") depth++;
        else if (source[at] === "]" && --depth === 0) break;
      }
    } else if (letter === "(") {
      open.push({ repeats: false, chooses: false, row: 0 });
      const prefix = /^\(\?(?:[:=!>]|<[=!]|[a-zA-Z-]*:)/.exec(source.slice(at, at + 16));
      if (prefix) at += prefix[0].length - 1;
    } else if (letter === ")") {
      if (open.length === 1) return "has a parenthesis too many";
      last = open.pop();
      const outer = open.at(-1) as Group;
      outer.repeats ||= last?.repeats ?? false;
      outer.row += last?.row ?? 0;
      if (outer.row > mostRepetitions) return "has too many unlimited repetitions in a row";
    } else if (letter === "|") {
      group.chooses = true;
      group.row = 0;
    }
  }
  return undefined;
}

// Steps that the library lacks, or does differently, as steps that it does alike.

/** White space of Unicode. JavaScript's also has U+FEFF, and lacks U+0085. */
const space = "\\t\\n\\u000b\\f\\r \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u200c\\u200d";

/** GPT-2's pattern, which `ByteLevel` applies unless `use_regex` is false. */
const byteLevelPattern = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

const split = (regex: string, behavior = "Isolated", invert = false): Step => ({
  type: "Split",
  pattern: { Regex: regex },
  behavior,
  invert,
});
const replace = (regex: string, content: string): Step => ({ type: "Replace", pattern: { Regex: regex }, content });

function matchPreTokenizer(step: Step): Step {
  switch (step.type) {
    case "Sequence":
      return { ...step, pretokenizers: (step.pretokenizers ?? []).map(matchPreTokenizer) };
    case "Digits":
      return split(step.individual_digits ? "\\p{N}" : "\\p{N}+");
    case "Whitespace":
      return split(`[${word}]+|[^${word}${space}]+`, "Removed", true);
    case "WhitespaceSplit":
      return split(`[${space}]`, "Removed");
    case "CharDelimiterSplit":
      return split(`[\\u{${(step.delimiter?.codePointAt(0) ?? 0).toString(16)}}]`, "Removed");
    case "ByteLevel":
      // The pattern must run after the prefix space is added, so a Split before it does not work.
      if (step.use_regex === false || step.add_prefix_space) return step;
      return { type: "Sequence", pretokenizers: [split(byteLevelPattern), { ...step, use_regex: false }] };
    default:
      return step;
  }
}

function matchNormalizer(step: Step): Step {
  switch (step.type) {
    case "Sequence":
      return { ...step, normalizers: (step.normalizers ?? []).map(matchNormalizer) };
    case "Nmt":
      return {
        type: "Sequence",
        normalizers: [
          replace("[\\u0001-\\u0008\\u000b\\u000e-\\u001f\\u007f\\u008f\\u009f]", ""),
          replace("[\\t\\n\\f\\r\\u1680\\u200b-\\u200f\\u2028\\u2029\\u2581\\ufeff\\ufffd]", " "),
        ],
      };
    case "Strip": {
      // The library reads ^ and $ as the limits of lines. The second lookbehind keeps the search linear.
      const left = replace(`(?<![\\s\\S])[${space}]+`, "");
      const right = replace(`(?<![${space}])[${space}]+(?![\\s\\S])`, "");
      return {
        type: "Sequence",
        normalizers: [...(step.strip_left ? [left] : []), ...(step.strip_right ? [right] : [])],
      };
    }
    default:
      return step;
  }
}

/** A copy of tokenizer.json's content with which the library behaves like the reference. */
export function matchReference(content: Record<string, unknown>): Record<string, unknown> {
  const { pre_tokenizer: pre, normalizer, added_tokens: added = [] } = content;
  return {
    ...content,
    added_tokens: added,
    ...(pre ? { pre_tokenizer: matchPreTokenizer(pre as Step) } : {}),
    ...(normalizer ? { normalizer: matchNormalizer(normalizer as Step) } : {}),
  };
}

// The library's parts that are replaced after it was created. They are properties of its objects, not of its types.

interface Parts {
  normalizer: ((text: string) => string) | null;
  pre_tokenizer: ((text: string, options: { section_index: number }) => string[]) | null;
  model: ((tokens: string[]) => string[]) & { vocab: string[]; tokens_to_ids: Map<string, number> };
  decoder: LibraryDecoder | null;
  encode_text(text: string | null): string[] | null;
  token_to_id(token: string): number | undefined;
}

interface LibraryDecoder {
  config: Step;
  decoders?: LibraryDecoder[];
  decode_chain(tokens: string[]): string[];
}

/** Replaces how the library finds added tokens, and what its decoders do differently. */
export function correctLibrary(library: Library, content: Record<string, unknown>): void {
  const added = (content.added_tokens ?? []) as AddedToken[];
  const parts = library as unknown as Parts;
  const ids = new Map(added.map((token) => [token.content, token.id]));
  const { vocab } = content.model as { vocab: Record<string, number> | unknown[] };
  // The library adds them to the model's vocabulary, so that it would find them inside of words.
  if (!Array.isArray(vocab)) {
    for (const name of ids.keys()) if (!Object.hasOwn(vocab, name)) parts.model.tokens_to_ids.delete(name);
    parts.token_to_id = (token) => ids.get(token) ?? parts.model.tokens_to_ids.get(token);
  }
  const { normalizer } = parts;
  const isNormalized = ({ normalized, special }: AddedToken) => normalized ?? !special;
  const asNormalized = (content: string) => (normalizer ? normalizer(content) : content);
  const findExact = tokenFinder(added.filter((token) => !isNormalized(token)).map((token) => [token.content, token]));
  const findNormalized = tokenFinder(
    added.filter(isNormalized).map((token): [string, AddedToken] => [asNormalized(token.content), token]),
  );
  for (const token of added) {
    // The reference decodes such a token as its normalized text.
    if (isNormalized(token) && normalizer) parts.model.vocab[token.id] = asNormalized(token.content);
  }
  parts.encode_text = (text) => {
    if (text === null) return null;
    const tokens: string[] = [];
    for (const piece of findExact(text)) {
      if (piece.token) {
        tokens.push(piece.token.content);
        continue;
      }
      for (const inner of findNormalized(asNormalized(piece.text))) {
        if (inner.token) tokens.push(inner.token.content);
        else if (inner.text !== "") {
          const index = piece.start === 0 && inner.start === 0 ? 0 : 1;
          const words = parts.pre_tokenizer?.(inner.text, { section_index: index }) ?? [inner.text];
          tokens.push(...parts.model(words));
        }
      }
    }
    return tokens;
  };
  correctDecoder(parts.decoder);
}

function correctDecoder(decoder: LibraryDecoder | null): void {
  for (const inner of decoder?.decoders ?? []) correctDecoder(inner);
  if (decoder?.config.type === "ByteFallback") decoder.decode_chain = decodeBytes;
  if (decoder?.config.type === "Metaspace" && decoder.config.prepend_scheme === "never") {
    const mark = (decoder.config as { replacement?: string }).replacement ?? "\u2581";
    decoder.decode_chain = (tokens) => tokens.map((token) => token.replaceAll(mark, " "));
  }
}

/** Bytes that are not UTF-8 are one replacement character each. */
function decodeBytes(tokens: string[]): string[] {
  const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  const texts: string[] = [];
  let bytes: number[] = [];
  const flush = () => {
    try {
      if (bytes.length > 0) texts.push(strict.decode(Uint8Array.from(bytes)));
    } catch {
      for (const _ of bytes) texts.push("\ufffd");
    }
    bytes = [];
  };
  for (const token of tokens) {
    const byte = /^<0x([\dA-Fa-f]{2})>$/.exec(token)?.[1];
    if (byte !== undefined) bytes.push(Number.parseInt(byte, 16));
    else {
      flush();
      texts.push(token);
    }
  }
  flush();
  return texts;
}

// Added tokens in a text.

interface Piece {
  text: string;
  start: number;
  token?: AddedToken;
}

const wordStart = new RegExp(`^[${word}]`, "u");
const wordEnd = new RegExp(`[${word}]$`, "u");
const isSpace = new RegExp(`^[${space}]$`);

type Node = Map<string, Node> & { token?: AddedToken; units?: number };

/** Divides a text at its added tokens: the leftmost one, and of several there the longest. */
function tokenFinder(entries: readonly (readonly [string, AddedToken])[]): (text: string) => Piece[] {
  const root: Node = new Map();
  for (const [content, token] of entries) {
    let node = root;
    for (const unit of content.split("")) {
      const next: Node = node.get(unit) ?? new Map();
      node.set(unit, next);
      node = next;
    }
    if (node === root) continue;
    // The reference keeps the token that was added last.
    node.token = token;
    node.units = content.length;
  }
  return (text) => {
    const pieces: Piece[] = [];
    let done = 0;
    for (let at = 0; at < text.length; at++) {
      let found: Node | undefined;
      for (let node = root.get(text[at] ?? ""), end = at + 1; node; node = node.get(text[end++] ?? "")) {
        if (node.token) found = node;
      }
      if (!found?.token || found.units === undefined) continue;
      const { token } = found;
      let [start, stop] = [at, at + found.units];
      at = stop - 1;
      // A pair of surrogates before the token is one character.
      const isWord =
        wordEnd.test(text.slice(Math.max(0, start - 2), start)) || wordStart.test(text.slice(stop, stop + 2));
      if (token.single_word && isWord) continue;
      if (token.lstrip) while (start > done && isSpace.test(text[start - 1] ?? "")) start--;
      if (token.rstrip) while (stop < text.length && isSpace.test(text[stop] ?? "")) stop++;
      if (done < start) pieces.push({ text: text.slice(done, start), start: done });
      pieces.push({ text: text.slice(start, stop), start, token });
      done = stop;
      at = Math.max(at, stop - 1);
    }
    if (done < text.length) pieces.push({ text: text.slice(done), start: done });
    return pieces;
  };
}
