/** A reward model behind one or several inference servers: batches go to the server with the fewest tokens in flight. */
import { setTimeout as sleep } from "node:timers/promises";
import { RunError, UserError } from "../../../errors.ts";
import { postJson } from "../../../http/post-json.ts";
import type { Scorer } from "../../engine.ts";
import type { ServerProcess } from "../process/server-process.ts";
import { dialectsOf, type ScoringDialect } from "./dialects.ts";
import type { ServedScoringModel } from "./served-model.ts";

export interface RequestOptions {
  /** Maximum number of sequences per request. */
  batchSize: number;
  /** Maximum number of retries of a request, on another server if there is one. */
  retries: number;
  /** Delay in seconds before the first retry; doubles with each retry. Default 1. */
  pauseSeconds?: number;
  /** Time limit of one attempt. */
  timeoutSeconds: number;
}

interface Server extends ServedScoringModel {
  dialect: ScoringDialect;
  tokensInFlight: number;
  /** Attempts that failed since the last one that succeeded. */
  failures: number;
}

export interface ServerScorer extends Scorer {
  /** Number of retries since the start. */
  readonly retries: number;
  /** Ends requests in progress. */
  close(): void;
}

/** Time to wait for the end of a server that no longer answers. */
const endingMs = 15_000;

/**
 * @param own the server, if Hone started it; its end is reported as the cause of failures
 * @throws UserError if a server does not return scores
 * @throws RunError if a server does not answer
 */
export async function serverScorer(
  model: Scorer["model"],
  served: readonly ServedScoringModel[],
  options: RequestOptions,
  own?: Pick<ServerProcess, "answers" | "died">,
): Promise<ServerScorer> {
  const { batchSize, pauseSeconds = 1, timeoutSeconds } = options;
  const closed = new AbortController();
  let retries = 0;
  const servers = await Promise.all(served.map(openServer));

  async function openServer(found: ServedScoringModel): Promise<Server> {
    const reasons: string[] = [];
    for (const dialect of dialectsOf(found.owner)) {
      const server: Server = { ...found, dialect, tokensInFlight: 0, failures: 0 };
      try {
        await ask(server, [Int32Array.of(0)]);
        return server;
      } catch (error) {
        if (!(error instanceof UserError)) throw error;
        reasons.push(error.message);
      }
    }
    throw new UserError(`the server at ${found.url} does not score sequences: ${reasons.join("; ")}`, {
      hint: "serve a sequence-classification model with one label: vllm serve MODEL --runner pooling, or SGLang with --is-embedding",
    });
  }

  async function ask({ url, name, dialect, headers }: Server, sequences: readonly Int32Array[]): Promise<number[]> {
    const address = url + dialect.path;
    const body = dialect.write(
      name,
      sequences.map((tokens) => Array.from(tokens)),
    );
    const once = { headers, retries: 0, pauseSeconds, timeoutSeconds, signal: closed.signal };
    const { value } = await postJson(address, body, once);
    const scores = dialect.read(value, address);
    if (scores.length === sequences.length) return scores;
    throw new RunError(`${address} answered ${scores.length} scores for ${sequences.length} sequences`);
  }

  async function scoreBatch(sequences: readonly Int32Array[]): Promise<number[]> {
    const tokens = sequences.reduce((sum, { length }) => sum + length, 0);
    for (let attempt = 0; ; attempt++) {
      const server = servers.reduce((best, other) => (precedes(other, best) ? other : best));
      server.tokensInFlight += tokens;
      try {
        const scores = await ask(server, sequences);
        server.failures = 0;
        return scores;
      } catch (error) {
        closed.signal.throwIfAborted();
        const death = own && !(await own.answers()) && (await Promise.race([own.died, sleep(endingMs)]));
        if (death) throw death;
        if (error instanceof UserError || attempt >= options.retries) throw error;
        server.failures++;
        retries++;
      } finally {
        server.tokensInFlight -= tokens;
      }
      await sleep(pauseSeconds * 2 ** attempt * 1000, undefined, { signal: closed.signal });
    }
  }

  return {
    model,
    get retries() {
      return retries;
    },
    async score(sequences) {
      const batches: Int32Array[][] = [];
      for (let from = 0; from < sequences.length; from += batchSize) {
        batches.push(sequences.slice(from, from + batchSize));
      }
      return Float32Array.from((await Promise.all(batches.map(scoreBatch))).flat());
    },
    close: () => closed.abort(new RunError("the reward model was closed")),
  };
}

/** Whether a server is preferred: it has fewer failures in a row, or as many and fewer tokens in flight. */
function precedes(server: Server, other: Server): boolean {
  if (server.failures !== other.failures) return server.failures < other.failures;
  return server.tokensInFlight < other.tokensInFlight;
}
