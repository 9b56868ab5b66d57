/** Reads facts about a model from its small files, for services that do not report them. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { openTokenizer } from "../../chat/tokens/tokenizer.ts";

interface ModelConfig {
  architectures?: string[];
  vocab_size?: number;
  eos_token_id?: number | number[];
  text_config?: ModelConfig;
}

const read = (file: string): ModelConfig =>
  existsSync(file) ? (JSON.parse(readFileSync(file, "utf8")) as ModelConfig) : {};

export function readTokenizerFacts(directory: string): {
  architecture: string;
  vocabularySize: number;
  eosTokenIds: number[];
} {
  const config = read(join(directory, "config.json"));
  const tokenizer = openTokenizer(directory);
  const given = [read(join(directory, "generation_config.json")).eos_token_id, config.eos_token_id];
  const own = tokenizer.idOf(tokenizer.config.eos_token);
  const eos = new Set([...given.flat().filter((id) => id !== undefined), ...(own === null ? [] : [own])]);
  return {
    architecture: config.architectures?.[0] ?? "unknown",
    vocabularySize: config.vocab_size ?? config.text_config?.vocab_size ?? Number.MAX_SAFE_INTEGER,
    eosTokenIds: [...eos],
  };
}
