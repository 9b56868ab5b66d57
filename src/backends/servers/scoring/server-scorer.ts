/** A reward model on one or several inference servers: batches go to the least busy one, and to another one if it fails. */
import { RunError, UserError } from "../../../errors.ts";
import { withRetries } from "../../../http/retries.ts";
import type { Scorer } from "../../engine.ts";
import type { ServedModel } from "../control/control.ts";
import { explain } from "../process/own-server.ts";
import type { ServerProcess } from "../process/server-process.ts";
import { post } from "../requests/post.ts";
import { mayAnswerLater, type Server, ServerFailed, type ServerSettings } from "../server.ts";
import { openServers } from "../server-group.ts";
import { dialectsOf, type ScoringDialect } from "./dialects.ts";

/** A server and the model that it serves. */
export interface ScoringServer extends ServedModel {
  url: string;
}

export interface RequestOptions {
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

export interface ServerScorer extends Scorer {
  /** Number of retries since the start. */
  readonly retries: number;
  /** Ends requests in progress. */
  close(): Promise<void>;
}

/**
 * @throws UserError if a server does not return scores
 * @throws RunError if a server does not answer
 */
export async function serverScorer(
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
