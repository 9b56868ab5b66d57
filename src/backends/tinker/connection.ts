/** A connection to a Tinker service: requests with retries, and futures that are polled until they end. */

import { setTimeout as sleep } from "node:timers/promises";
import { HoneError, RunError } from "../../errors.ts";
import { reasonOf } from "../../http/retries.ts";
import { type Body, type ConnectionOptions, createRequests, type Method } from "./requests.ts";
import {
  Busy,
  describeAnswer,
  detailOf,
  futureFailure,
  LostResultError,
  refusal,
  waitingText,
} from "./service-errors.ts";

type Result = Record<string, unknown> | Uint8Array;

const pollTimeoutMs = 45_000;
const maxPauseMs = 30_000;

export type Connection = ReturnType<typeof createConnection>;

export function createConnection(options: ConnectionOptions) {
  const requests = createRequests(options);
  const { baseUrl, retryMs, onStatus, counts } = requests;
  const waiting = new Set<{ what: string; since: number }>();

  const settle = (method: Method, path: string, body?: Body, signal?: AbortSignal) =>
    requests.settle({ method, path, body, signal });

  /** Returns the answer's JSON. @throws UserError when the service blames the request; RunError */
  async function post(path: string, body: Body, signal?: AbortSignal): Promise<Record<string, unknown>> {
    return requests.readJson(path, await settle("POST", path, body, signal));
  }

  async function poll(id: string, signal?: AbortSignal): Promise<Result | "again"> {
    const path = "retrieve_future";
    const body = { request_id: id, allow_metadata_only: false };
    const response = await requests.send({ method: "POST", path, body, signal }, pollTimeoutMs);
    const { status, ok, headers } = response;
    if (ok && headers.get("content-type")?.includes("protobuf")) return new Uint8Array(await response.arrayBuffer());
    const text = await response.text();
    if (status === 408) return "again";
    if (status === 410) throw new LostResultError(id, detailOf(text));
    if (status === 429 || status === 402 || status >= 500) throw new Busy(describeAnswer(status, text));
    if (!ok) throw refusal(baseUrl, path, status, text);
    const answer = JSON.parse(text) as Record<string, unknown>;
    if (answer.type === "try_again") {
      const { queue_state: state, queue_state_reason: why } = answer;
      if (state !== "active") onStatus(`waiting at the request of the Tinker service: ${why ?? state}`);
      return "again";
    }
    if (typeof answer.error === "string") throw futureFailure(answer);
    return answer;
  }

  /** Repeats the attempt while it returns "again" or the network fails. */
  async function persist<T>(what: string, attempt: () => Promise<T | "again">, signal?: AbortSignal): Promise<T> {
    const entry = { what, since: performance.now() };
    waiting.add(entry);
    try {
      for (let failures = 0; ; ) {
        try {
          // Without a network (the service in process), only this ends a call.
          signal?.throwIfAborted();
          const result = await attempt();
          if (result !== "again") return result;
          failures = 0;
        } catch (error) {
          signal?.throwIfAborted();
          if (error instanceof HoneError && !(error instanceof Busy)) throw error;
          counts.retries++;
          // A service that restarts comes back, and then reports that the result is lost.
          if (failures > 1) onStatus(waitingText(reasonOf(error)));
          await sleep(Math.min(maxPauseMs, 2 * retryMs * 2 ** failures++), undefined, { signal });
        }
      }
    } finally {
      waiting.delete(entry);
    }
  }

  /** Waits for the future of an accepted request: JSON, or protobuf as bytes. */
  const collect = (what: string, accepted: Record<string, unknown>, signal?: AbortSignal): Promise<Result> =>
    persist(what, () => poll(String(accepted.request_id), signal), signal);

  return {
    counts,
    post,
    persist,
    collect,
    get: async (path: string) => requests.readJson(path, await settle("GET", path)),
    /** A missing object counts as deleted. */
    async remove(path: string): Promise<void> {
      const response = await settle("DELETE", path);
      const text = await response.text();
      if (!response.ok && response.status !== 404) throw refusal(baseUrl, path, response.status, text);
    },
    /** Posts an operation and waits for its future. */
    run: async (kind: string, body: Body) => (await collect(kind, await post(kind, body))) as Record<string, unknown>,
    /** Posts and yields the lines of the answer as they arrive, each a JSON object. */
    async *lines(path: string, body: Body, signal: AbortSignal): AsyncGenerator<Record<string, unknown>> {
      const response = await settle("POST", path, body, signal);
      if (!response.ok || !response.body) throw refusal(baseUrl, path, response.status, await response.text());
      // Without a network (the service in process), only this ends the stream.
      const text = response.body.pipeThrough(new TextDecoderStream(), { signal });
      let rest = "";
      for await (const part of text) {
        const lines = `${rest}${part}`.split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines) yield JSON.parse(line) as Record<string, unknown>;
      }
    },
    /** Downloads a file from a signed address. */
    async download(address: string): Promise<Uint8Array> {
      const response = await (options.fetch ?? fetch)(address, {});
      if (!response.ok) throw new RunError(`cannot download ${address.split("?")[0]}: ${response.status}`);
      return new Uint8Array(await response.arrayBuffer());
    },
    waitingFor: () => [...waiting].map(({ what, since }) => ({ what, seconds: (performance.now() - since) / 1000 })),
  };
}
