/** An engine whose reward models are served by inference servers. */
import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { z } from "zod";
import { UserError } from "../../../errors.ts";
import type { Engine } from "../../engine.ts";
import type { ServerProcess } from "../process/server-process.ts";
import { scoringCapabilities } from "./scoring-capabilities.ts";
import { assignServers, requireSameTokenizer, type ServedScoringModel, servedModel } from "./served-model.ts";
import { type RequestOptions, type ServerScorer, serverScorer } from "./server-scorer.ts";

/** A server that Hone started. */
type OwnScoringServer = Pick<ServerProcess, "url" | "apiKey" | "answers" | "died" | "stop">;

export interface ScoringServersOptions extends RequestOptions {
  /** URLs of running servers; if empty, `start` starts one for each reward model. */
  urls: readonly string[];
  apiKey?: string | undefined;
  start(directory: string): Promise<OwnScoringServer>;
  /** All reward models of the run. */
  models: readonly string[];
  /** The folder of a reward model, for its tokenizer and chat template. */
  directoryOf(model: string): Promise<string>;
  /** Encodes with the tokenizer of a folder, without adding special tokens. */
  encode(directory: string, text: string): ArrayLike<number>;
}

const modelConfig = z.looseObject({
  architectures: z.array(z.string()).optional(),
  max_position_embeddings: z.int().optional(),
  mean: z.number().optional(),
  std: z.number().positive().optional(),
});

/** Servers are contacted or started when a reward model is opened. */
export function withScoringServers(engine: Engine, options: ScoringServersOptions): Engine {
  const scorers: ServerScorer[] = [];
  const started: OwnScoringServer[] = [];
  let servers: ReturnType<typeof findServers> | undefined;
  const findServers = async () =>
    assignServers(options.models, await Promise.all(options.urls.map((url) => servedModel(url, options.apiKey))));
  let reportDeath: (reason: Error) => void;
  const ownDied = new Promise<Error>((resolve) => {
    reportDeath = resolve;
  });

  async function startFor(directory: string): Promise<OwnScoringServer> {
    const server = await options.start(directory);
    started.push(server);
    void server.died.then(reportDeath);
    return server;
  }

  async function serversOf(name: string): Promise<readonly ServedScoringModel[]> {
    servers ??= findServers();
    return (await servers).get(name) ?? [];
  }

  return {
    ...engine,
    get model() {
      return engine.model;
    },
    capabilities: scoringCapabilities(engine.capabilities),
    died: engine.died ? Promise.race([engine.died, ownDied]) : ownDied,
    async createScorer(name) {
      const directory = await options.directoryOf(name);
      const config = modelConfig.parse(JSON.parse(readFileSync(join(directory, "config.json"), "utf8")));
      const own = options.urls.length === 0 ? await startFor(requireClassifier(name, directory, config)) : undefined;
      const served = own ? [await servedModel(own.url, own.apiKey)] : await serversOf(name);
      for (const one of served) {
        await requireSameTokenizer(one, name, (text) => options.encode(directory, text));
      }
      const limits = [config.max_position_embeddings, ...served.map(({ maxLength }) => maxLength)];
      const maxLength = Math.min(...limits.filter((limit) => limit !== undefined));
      const scorer = await serverScorer({ name, directory, maxLength }, served, options, own);
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
      try {
        await engine.close();
      } finally {
        await Promise.all(started.map((server) => server.stop()));
      }
    },
  };
}

/** vLLM does not support models with a value head. */
function requireClassifier(name: string, directory: string, { architectures }: z.infer<typeof modelConfig>): string {
  const [architecture = "unknown"] = architectures ?? [];
  if (!architecture.endsWith("ForCausalLM")) return directory;
  throw new UserError(`rllm.reward.use_engine=true: vLLM cannot score with ${name}, a ${architecture}`, {
    hint: "use a sequence-classification model; without use_engine, Hone scores with value heads too",
  });
}
