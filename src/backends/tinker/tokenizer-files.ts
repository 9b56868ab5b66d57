/** Fetches the small files of a model and reads facts from them, for services that do not report them. */
import { existsSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { downloadFileToCacheDir } from "@huggingface/hub";
import { UserError } from "../../base/errors.ts";
import { openTokenizer } from "../../chat/tokenizer.ts";

/** The folder with the small files of a model, by its path or hub id. @throws UserError when they cannot be fetched */
export async function tokenizerFolder(model: string): Promise<string> {
  const local = resolve(model);
  if (existsSync(join(local, "tokenizer.json"))) return local;
  let folder = "";
  for (const path of [
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
  ]) {
    try {
      const file = await downloadFileToCacheDir({ repo: model, path });
      if (path === "tokenizer.json") folder = dirname(file);
    } catch (cause) {
      if (path !== "tokenizer.json") continue;
      throw new UserError(`the tokenizer of ${model} cannot be fetched from the hub: ${cause}`, {
        hint: "Name the model by a folder that contains its tokenizer.json, or make the hub reachable.",
        cause,
      });
    }
  }
  return folder;
}

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
