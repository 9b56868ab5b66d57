/** Reward models on inference servers: finds the servers of each model or starts one, and checks that they serve it. */
import { readFileSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { z } from "zod";
import { UserError } from "../../../errors.ts";
import type { ScoringPart } from "../../engine.ts";
import { openAsk } from "../control/ask.ts";
import { readModel, tokenize, tokenizerProbe } from "../control/control.ts";
import type { ServerProcess } from "../process/server-process.ts";
import { addressOf, type ServerSettings } from "../server.ts";
import { type RequestOptions, type ScoringServer, type ServerScorer, serverScorer } from "./server-scorer.ts";

/** A server that Hone started. */
type OwnServer = Pick<ServerProcess, "url" | "apiKey" | "answers" | "died" | "stop">;

export interface ScoringServersOptions extends Omit<RequestOptions, "settings" | "own"> {
  /** URLs of running servers; if empty, `start` starts one for each reward model. */
  urls: readonly string[];
  start(directory: string): Promise<OwnServer>;
  /** All reward models of the run. */
  models: readonly string[];
  /** The folder of a reward model, for its tokenizer and chat template. */
  directoryOf(model: string): Promise<string>;
  /** Encodes with the tokenizer of a folder, without adding special tokens. */
  encode(directory: string, text: string): ArrayLike<number>;
}

const settings: ServerSettings = {
  url: "rllm.reward.engine_url",
  apiKey: "the environment variable VLLM_API_KEY",
  timeout: "rllm.reward.timeout",
};

const modelConfig = z.looseObject({
  architectures: z.array(z.string()).optional(),
  max_position_embeddings: z.int().optional(),
  mean: z.number().optional(),
  std: z.number().positive().optional(),
});

/** Servers are contacted or started when a reward model is opened. */
export function servedScorers(options: ScoringServersOptions): ScoringPart {
  const scorers: ServerScorer[] = [];
  const started: OwnServer[] = [];
  let assigned: Promise<ReadonlyMap<string, readonly ScoringServer[]>> | undefined;
  let reportDeath: (reason: Error) => void;
  const died = new Promise<Error>((resolve) => {
    reportDeath = resolve;
  });

  const askAt = (url: string, apiKey: string | undefined) =>
    openAsk(addressOf(url, apiKey, settings), "vLLM (--runner pooling) or SGLang (--is-embedding)");

  async function find(url: string, apiKey = options.apiKey): Promise<ScoringServer> {
    return { url, ...(await readModel(askAt(url, apiKey))) };
  }

  async function start(directory: string): Promise<OwnServer> {
    const server = await options.start(directory);
    started.push(server);
    void server.died.then(reportDeath);
    return server;
  }

  /** @throws UserError if a server has a different tokenizer */
  async function requireSameTokenizer(model: string, directory: string, { url, name }: ScoringServer, apiKey?: string) {
    const tokens = await tokenize(askAt(url, apiKey), name, tokenizerProbe);
    if (tokens.join() === Array.from(options.encode(directory, tokenizerProbe)).join()) return;
    throw new UserError(`the server at ${url} serves ${name}, whose tokenizer is not that of ${model}`, {
      hint: `serve ${model} there, or correct rllm.reward.model`,
    });
  }

  return {
    died,
    async createScorer(name) {
      const directory = await options.directoryOf(name);
      const config = modelConfig.parse(JSON.parse(readFileSync(join(directory, "config.json"), "utf8")));
      const own = options.urls.length === 0 ? await start(requireClassifier(name, directory, config)) : undefined;
      const apiKey = own ? own.apiKey : options.apiKey;
      if (!own)
        assigned ??= Promise.all(options.urls.map((url) => find(url))).then((all) => assign(options.models, all));
      const servers = own ? [await find(own.url, apiKey)] : ((await assigned)?.get(name) ?? []);
      for (const server of servers) await requireSameTokenizer(name, directory, server, apiKey);
      const limits = [config.max_position_embeddings, ...servers.map(({ maxLength }) => maxLength)];
      const maxLength = Math.min(...limits.filter((limit) => limit !== undefined));
      const scorer = await serverScorer({ name, directory, maxLength }, servers, { ...options, apiKey, settings, own });
      scorers.push(scorer);
      const { mean, std } = config;
      return mean === undefined || std === undefined ? scorer : Object.assign(scorer, { moments: { mean, std } });
    },
    stats: async () =>
      Object.fromEntries(
        scorers.map(({ model, retries }) => [`reward_model/${basename(model.name)}_retries`, retries]),
      ),
    async close() {
      await Promise.all(scorers.map((scorer) => scorer.close()));
      await Promise.all(started.map((server) => server.stop()));
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

/**
 * Assigns the servers to the reward models. A single model gets all servers, regardless of the name that they use for it.
 *
 * @throws UserError if a model has no server, or a server has no model
 */
function assign(
  models: readonly string[],
  servers: readonly ScoringServer[],
): ReadonlyMap<string, readonly ScoringServer[]> {
  const assigned = new Map(
    models.map((model) => [model, servers.filter((one) => models.length === 1 || serves(one, model))]),
  );
  for (const [model, own] of assigned) {
    if (own.length > 0) continue;
    const others = servers.map(({ url, name }) => `${url} serves ${name}`).join(", ");
    throw new UserError(`no server of rllm.reward.engine_url serves ${model}: ${others}`, {
      hint: "use the name that the server lists under /v1/models",
    });
  }
  const stray = servers.find((one) => ![...assigned.values()].some((own) => own.includes(one)));
  if (stray === undefined) return assigned;
  throw new UserError(`the server at ${stray.url} serves ${stray.name}, which rllm.reward.model does not name`, {
    hint: "remove it from rllm.reward.engine_url",
  });
}

function serves({ name, root }: ScoringServer, model: string): boolean {
  return [name, root].some(
    (known) =>
      known !== undefined &&
      (known === model || resolve(known) === resolve(model) || basename(known) === basename(model)),
  );
}
