/** Checks that two models have the same vocabulary, by their tokenizer.json. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { UserError } from "../errors.ts";
import type { ModelInfo } from "./engine.ts";

type TokenizerModel = Pick<ModelInfo, "name" | "directory">;

/** @throws UserError if an id stands for different tokens */
export function requireSameVocabulary(model: TokenizerModel, other: TokenizerModel): void {
  const [own, others] = [vocabularyOf(model.directory), vocabularyOf(other.directory)];
  for (const id of new Set([...own.keys(), ...others.keys()])) {
    const [here, there] = [own.get(id), others.get(id)];
    if (here === there) continue;
    throw new UserError(
      `${other.name} has a different vocabulary from ${model.name}: token ${id} is ${shown(there)} instead of ${shown(here)}`,
      {
        hint: "a critic, reference or teacher reads the tokens of the run's own model, so it needs the same tokenizer",
      },
    );
  }
}

const shown = (token: string | undefined) => (token === undefined ? "absent" : JSON.stringify(token));

interface TokenizerFile {
  model: { vocab: Record<string, number> | [token: string, score: number][] };
  added_tokens?: { id: number; content: string }[];
}

/** The token of each id. */
function vocabularyOf(directory: string): Map<number, string> {
  const file = JSON.parse(readFileSync(join(directory, "tokenizer.json"), "utf8")) as TokenizerFile;
  const { vocab } = file.model;
  const found = new Map(
    Array.isArray(vocab)
      ? vocab.map(([token], id) => [id, token] as const)
      : Object.entries(vocab).map(([token, id]) => [id, token] as const),
  );
  for (const { id, content } of file.added_tokens ?? []) found.set(id, content);
  return found;
}
