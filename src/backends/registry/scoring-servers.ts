/** Servers for the reward models of any backend. */
import { openTokenizer } from "../../chat/tokens/tokenizer.ts";
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import type { Engine } from "../engine.ts";
import { modelSource } from "../local/models.ts";
import { withScoringServers } from "../servers/scoring/with-scoring-servers.ts";

export function scoringServers(engine: Engine, { rllm: { reward } }: Config): Engine {
  return withScoringServers(engine, {
    urls: reward.engine_url,
    apiKey: process.env.VLLM_API_KEY || undefined,
    models: [reward.model ?? []].flat(),
    batchSize: reward.batch_size,
    retries: reward.retries,
    timeoutSeconds: reward.timeout,
    directoryOf,
    encode: (directory, text) => openTokenizer(directory).encode(text),
  });
}

async function directoryOf(model: string): Promise<string> {
  const source = modelSource(model, "rllm.reward.model");
  if (source.kind === "path" && !source.path.endsWith(".gguf")) return source.path;
  throw new UserError(`rllm.reward.model=${model}: its tokenizer and chat template are read from a folder`, {
    hint: "download the model and name its folder; config.json and the tokenizer's files are enough for use_engine",
  });
}
