/** An engine whose reward models are served by inference servers that run already. */
import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { z } from "zod";
import type { Engine } from "../../engine.ts";
import { scoringCapabilities } from "./scoring-capabilities.ts";
import { assignServers, requireSameTokenizer, servedModel } from "./served-model.ts";
import { type RequestOptions, type ServerScorer, serverScorer } from "./server-scorer.ts";

export interface ScoringServersOptions extends RequestOptions {
  urls: readonly string[];
  apiKey?: string | undefined;
  /** All reward models of the run. */
  models: readonly string[];
  /** The folder of a reward model, for its tokenizer and chat template. */
  directoryOf(model: string): Promise<string>;
  /** Encodes with the tokenizer of a folder, without special tokens at the ends. */
  encode(directory: string, text: string): ArrayLike<number>;
}

const modelConfig = z.looseObject({
  max_position_embeddings: z.int().optional(),
  mean: z.number().optional(),
  std: z.number().positive().optional(),
});

/** The servers are asked when a reward model is opened. */
export function withScoringServers(engine: Engine, options: ScoringServersOptions): Engine {
  const scorers: ServerScorer[] = [];
  let servers: ReturnType<typeof findServers> | undefined;
  const findServers = async () =>
    assignServers(options.models, await Promise.all(options.urls.map((url) => servedModel(url, options.apiKey))));

  return {
    ...engine,
    get model() {
      return engine.model;
    },
    capabilities: scoringCapabilities(engine.capabilities),
    async createScorer(name) {
      const directory = await options.directoryOf(name);
      servers ??= findServers();
      const served = (await servers).get(name) ?? [];
      for (const one of served) {
        await requireSameTokenizer(one, name, (text) => options.encode(directory, text));
      }
      const config = modelConfig.parse(JSON.parse(readFileSync(join(directory, "config.json"), "utf8")));
      const limits = [config.max_position_embeddings, ...served.map(({ maxLength }) => maxLength)];
      const maxLength = Math.min(...limits.filter((limit) => limit !== undefined));
      const scorer = await serverScorer({ name, directory, maxLength }, served, options);
      scorers.push(scorer);
      const { mean, std } = config;
      return mean === undefined || std === undefined ? scorer : Object.assign(scorer, { moments: { mean, std } });
    },
    async stats() {
      const retries = scorers.map(({ model, retries }) => [`reward_model/${basename(model.name)}_retries`, retries]);
      return { ...(await engine.stats()), ...Object.fromEntries(retries) };
    },
    async close() {
      for (const scorer of scorers) scorer.close();
      await engine.close();
    },
  };
}
