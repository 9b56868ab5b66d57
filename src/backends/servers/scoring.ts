/** Reward models on inference servers: token ids in, one number for each sequence out. */
import { readFileSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { z } from "zod";
import { RunError, UserError } from "../../base/errors.ts";
import { withRetries } from "../../base/http.ts";
import type { Scorer, ScoringPart } from "../engine.ts";
import { openAsk, readModel, type ServedModel, tokenize, tokenizerProbe } from "./control.ts";
import { addressOf, mayAnswerLater, openServers, type Server, ServerFailed, type ServerSettings } from "./group.ts";
import { explain, type ServerProcess } from "./process.ts";
import { post } from "./requests.ts";

// The requests for the scores of reward models: token ids in, one number per sequence out.

interface ScoringDialect {
  path: string;
  write(model: string, sequences: readonly (readonly number[])[]): object;
  /**
   * `[S]`
   * @param answer the body
   * @throws UserError if the answer has another form, or several numbers for a sequence
   */
  read(answer: string, address: string): number[];
}

const classified = z.object({ data: z.array(z.object({ index: z.int(), probs: z.array(z.number()) })) });

/** vLLM with `--runner pooling` and a sequence-classification model. */
const classify: ScoringDialect = {
  path: "/classify",
  // Without use_activation=false, vLLM returns the sigmoid of the score.
  write: (model, sequences) => ({ model, input: sequences, use_activation: false }),
  read(answer, address) {
    const { data } = parse(classified, answer, address);
    return data.toSorted((a, b) => a.index - b.index).map(({ probs }) => single(probs, address));
  },
};

const perToken = z.array(z.array(z.number())).min(1);
const lastOf = perToken.transform((rows) => rows.at(-1) ?? []);
const pooled = z.object({ data: z.array(z.object({ index: z.int(), data: z.union([z.array(z.number()), lastOf]) })) });

/** vLLM with a reward model that scores every token. The score of the last token is that of the sequence. */
const pooling: ScoringDialect = {
  path: "/pooling",
  write: (model, sequences) => ({ model, input: sequences, use_activation: false }),
  read(answer, address) {
    const { data } = parse(pooled, answer, address);
    return data.toSorted((a, b) => a.index - b.index).map(({ data: numbers }) => single(numbers, address));
  },
};

const embedded = z.array(z.object({ embedding: z.array(z.number()) }));

/** SGLang with `--is-embedding`. Its `/v1/classify` would return a softmax instead. */
const sglang: ScoringDialect = {
  path: "/classify",
  write: (_, sequences) => ({ input_ids: sequences }),
  read: (answer, address) => parse(embedded, answer, address).map(({ embedding }) => single(embedding, address)),
};

/** The routes to try, in order, by the `owned_by` of the server's model list. */
const dialectsOf = (owner: string | undefined): readonly ScoringDialect[] =>
  owner === "sglang" ? [sglang] : [classify, pooling];

function parse<Answer>(schema: z.ZodType<Answer>, answer: string, address: string): Answer {
  try {
    return schema.parse(JSON.parse(answer));
  } catch (error) {
    throw new UserError(`${address} answered ${answer.slice(0, 200)} instead of scores`, { cause: error });
  }
}

function single(numbers: readonly number[], address: string): number {
  const [score] = numbers;
  if (score !== undefined && numbers.length === 1) return score;
  throw new UserError(`${address} gives a sequence ${numbers.length} numbers; a reward model gives one`);
}

// A reward model on one or several inference servers: batches go to the least busy one, and to another one if it fails.

/** A server and the model that it serves. */
interface ScoringServer extends ServedModel {
  url: string;
}

interface RequestOptions {
  apiKey?: string | undefined;
  settings: ServerSettings;
  /** Maximum number of sequences per request. */
  batchSize: number;
  /** Maximum number of retries of a request that failed on each server. */
  retries: number;
  /** Delay in seconds before the first retry; doubles with each retry. Default 1. */
  pauseSeconds?: number;
  /** Time limit of one request. */
  timeoutSeconds: number;
  /** Called with a line when a server is excluded, and when it is used again. */
  onNote?: ((text: string) => void) | undefined;
  /** The server, if Hone started it: its end is reported as the cause of failures. */
  own?: Pick<ServerProcess, "answers" | "died"> | undefined;
}

interface ServerScorer extends Scorer {
  /** Number of retries since the start. */
  readonly retries: number;
  /** Ends requests in progress. */
  close(): Promise<void>;
}

/**
 * @throws UserError if a server does not return scores
 * @throws RunError if a server does not answer
 */
async function serverScorer(
  model: Scorer["model"],
  served: readonly ScoringServer[],
  options: RequestOptions,
): Promise<ServerScorer> {
  const { batchSize, retries: limit, pauseSeconds = 1, own } = options;
  const closed = new AbortController();
  const { signal } = closed;
  const hint = own && "see the server's log in the run folder, and continue with --resume";
  const group = openServers({ ...options, urls: served.map(({ url }) => url), hint });
  const dialects = new Map<Server, ScoringDialect>();
  const names = new Map(group.servers.map((server, index) => [server, served[index]!.name]));
  let repeated = 0;

  async function findDialect(server: Server, owner: string | undefined): Promise<void> {
    const reasons: string[] = [];
    for (const dialect of dialectsOf(owner)) {
      try {
        await ask(server, dialect, [Int32Array.of(0)]);
        dialects.set(server, dialect);
        return;
      } catch (error) {
        if (error instanceof ServerFailed || !(error instanceof Error)) throw error;
        reasons.push(error.message);
      }
    }
    throw new UserError(`the server at ${server.url} does not score sequences: ${reasons.join("; ")}`, {
      hint: "serve a sequence-classification model with one label: vllm serve MODEL --runner pooling, or SGLang with --is-embedding",
    });
  }

  async function ask(server: Server, dialect: ScoringDialect, sequences: readonly Int32Array[]): Promise<number[]> {
    const address = server.url + dialect.path;
    const tokens = sequences.map((sequence) => Array.from(sequence));
    const body = JSON.stringify(dialect.write(names.get(server)!, tokens));
    const text = await post({ server, path: server.prefix + dialect.path, body, signal, onText: undefined });
    // A server that is killed while it answers may leave an empty answer.
    if (text === "") throw new ServerFailed(`${address} did not answer`);
    const scores = dialect.read(text, address);
    if (scores.length === sequences.length) return scores;
    throw new ServerFailed(`${address} answered ${scores.length} scores for ${sequences.length} sequences`);
  }

  async function scoreOnce(sequences: readonly Int32Array[]): Promise<number[]> {
    try {
      return await group.run(undefined, (server) => ask(server, dialects.get(server)!, sequences));
    } catch (error) {
      throw own && !signal.aborted ? await explain(error, own) : error;
    }
  }

  const scoreBatch = (sequences: readonly Int32Array[]) =>
    withRetries(() => scoreOnce(sequences), {
      retries: limit,
      pauseSeconds,
      signal,
      isTemporary: mayAnswerLater,
      onRetry: () => void repeated++,
    });

  await Promise.all(group.servers.map((server, index) => findDialect(server, served[index]!.owner))).catch(
    async (error: unknown) => {
      await group.close();
      throw error;
    },
  );
  return {
    model,
    get retries() {
      return group.retries + repeated;
    },
    async score(sequences) {
      const batches: Int32Array[][] = [];
      for (let from = 0; from < sequences.length; from += batchSize) {
        batches.push(sequences.slice(from, from + batchSize));
      }
      return Float32Array.from((await Promise.all(batches.map(scoreBatch))).flat());
    },
    async close() {
      closed.abort(new RunError("the reward model was closed"));
      await group.close();
    },
  };
}

// Reward models on inference servers: finds the servers of each model or starts one, and checks that they serve it.

/** A server that Hone started. */
type StartedServer = Pick<ServerProcess, "url" | "apiKey" | "answers" | "died" | "stop">;

export interface ScoringServersOptions extends Omit<RequestOptions, "settings" | "own"> {
  /** URLs of running servers; if empty, `start` starts one for each reward model. */
  urls: readonly string[];
  start(directory: string): Promise<StartedServer>;
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
  const started: StartedServer[] = [];
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

  async function start(directory: string): Promise<StartedServer> {
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
