/** The texts of tokens, decoded with the tokenizer in the run folder. */
import { join } from "node:path";
import { incrementalDecoder } from "../../chat/tokens/incremental-decoder.ts";
import { openTokenizer } from "../../chat/tokens/tokenizer.ts";
import { HoneError, UserError } from "../../errors.ts";
import { formatBytes } from "../../files/durable-files.ts";
import { type OpenFile, withInside } from "../../files/regular-file.ts";
import { readable } from "../../system-errors.ts";

/** One text per token; joined, they are the decoded text. */
export type Pieces = (tokens: Iterable<number>) => string[];

/** Decodes with the tokenizer in the run folder; undefined if it has none, or it cannot be read. */
export function openPieces(run: string): Pieces | undefined {
  try {
    for (const file of ["tokenizer.json", "tokenizer_config.json"]) withInside(run, `tokenizer/${file}`, requireSmall);
    const tokenizer = openTokenizer(join(run, "tokenizer"));
    return (tokens) => {
      const decoder = incrementalDecoder((ids) => tokenizer.decode(ids));
      const pieces = Array.from(tokens, (token) => decoder.push(token));
      const rest = decoder.end();
      if (pieces.length > 0) pieces[pieces.length - 1] += rest;
      return pieces;
    };
  } catch (error) {
    if (readable(error) instanceof HoneError) return undefined;
    throw error;
  }
}

/** Tokenizers of large vocabularies have 35 MB. */
const maxTokenizerBytes = 1 << 28;

function requireSmall({ stat }: OpenFile): void {
  if (stat.size > maxTokenizerBytes) throw new UserError(`the tokenizer has ${formatBytes(stat.size)}`);
}
