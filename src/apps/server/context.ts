/** What all parts of the server share: settings, log, metrics, and the futures of long operations. */
import { type Failure, NonFiniteGradientError } from "../../backends/tinker/handshake.ts";
import { Notifier } from "../../base/concurrency.ts";
import { HoneError, messageOf, UserError } from "../../base/errors.ts";
import { beginningOf, printable } from "../../base/text.ts";
import { outColors } from "../../tracking/console-lines.ts";
import type { BaseModel } from "./base-models.ts";
import { clipped } from "./http.ts";
import type { Store } from "./store.ts";

/** Tokens or checkpoints that a client used; `session` is null if it has none. */
export type UseListener = (
  kind: "training" | "sampling_prefill" | "sampling_sample" | "checkpoint",
  session: string | null,
  baseModel: string,
  amount: number,
) => void;

export interface ServerContext {
  store: Store;
  models: readonly BaseModel[];
  futures: FutureStore;
  metrics: Metrics;
  log: Log;
  /** Reports what a client used to `useListeners`. */
  use: UseListener;
  useListeners: UseListener[];
  /** Identifies this start of the server. Ids of futures contain it, so ids from before a restart are recognized. */
  boot: string;
  /** How long to wait for a missing sequence id. */
  gapMs: number;
  /** How long a poll is held open. */
  pollMs: number;
  /** Sessions without a request for this long free their memory. */
  sessionTimeoutMs: number;
  /** How many unused models stay in memory. */
  maxIdleModels: number;
  /** The most waiting operations of one model. */
  maxWaitingOperations: number;
  now: () => Date;
}

// The server's log for people: one line per event, with its time and its session or model.

export interface Log {
  info(who: string, text: string): void;
  /** Counts what was sampled, for the next summary. */
  sampled(sequences: number, tokens: number): void;
  /** Logs one line about what was sampled since the last call. */
  summarize(): void;
  /** A problem to look at. Each line of `details` (a stack) becomes a line of the log. */
  warn(who: string, text: string, details?: string): void;
}

/** Shortens an id to the first part of the session's, then the model or sampler. */
const shortId = (id: string): string => id.replace(/^([0-9a-f]{8})[0-9a-f-]{28}/, "$1");

const longestLine = 1000;

/** @param write gets whole lines, without the control characters of what clients sent */
export function createLog(write: (line: string) => void, now: () => Date = () => new Date()): Log {
  const line = (who: string, text: string, color = (shown: string) => shown) => {
    const time = now().toISOString().slice(11, 19);
    const shown = printable(beginningOf(text, longestLine));
    write(`${outColors.dim(time)} ${who === "" ? "" : `${outColors.cyan(printable(shortId(who)))} `}${color(shown)}\n`);
  };
  let [sequences, tokens] = [0, 0];
  return {
    info: (who, text) => line(who, text),
    sampled(more, moreTokens) {
      sequences += more;
      tokens += moreTokens;
    },
    summarize() {
      if (sequences > 0) line("", `sampled ${sequences} sequences, ${tokens} tokens`);
      [sequences, tokens] = [0, 0];
    },
    warn(who, text, details) {
      for (const each of [text, ...(details?.split("\n") ?? [])]) line(who, each, outColors.yellow);
    },
  };
}

// Counters and gauges in Prometheus' text format.

/** All counters, with what they count. */
const counters: Readonly<Record<string, string>> = {
  hone_http_requests_total: "HTTP requests answered, by route and status.",
  hone_operations_total: "Operations that ended, by kind and outcome.",
  hone_operation_seconds_total: "Seconds from the acceptance of an operation to its end, by kind.",
  hone_trained_tokens_total: "Input tokens of forward and forward_backward.",
  hone_sampled_tokens_total: "Tokens sampled.",
  hone_prompt_tokens_total: "Tokens of prompts.",
  hone_refused_total: "Requests answered 429 because a queue was full, by queue.",
  hone_skipped_sequence_ids_total: "Sequence ids that never arrived.",
  hone_evicted_models_total: "Unused models moved to disk.",
  hone_engine_deaths_total: "Engines that died, by model.",
};

type Labels = Record<string, string>;

const escaped = (value: string) => value.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n");

function labelText(labels: Labels): string {
  const pairs = Object.entries(labels).map(([key, value]) => `${key}="${escaped(value)}"`);
  return pairs.length > 0 ? `{${pairs.join(",")}}` : "";
}

export type Metrics = ReturnType<typeof createMetrics>;

export function createMetrics() {
  const values = new Map(Object.keys(counters).map((name) => [name, new Map<string, number>()]));
  const gauges: { name: string; help: string; read: () => { labels?: Labels; value: number }[] }[] = [];

  function block(name: string, help: string, type: string, series: readonly (readonly [string, number])[]): string {
    const lines = series.map(([labels, value]) => `${name}${labels} ${value}\n`);
    return lines.length === 0 ? "" : `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${lines.join("")}`;
  }

  return {
    add(name: string, labels: Labels, value = 1): void {
      const series = values.get(name);
      if (!series) throw new Error(`there is no counter ${name}`);
      const key = labelText(labels);
      series.set(key, (series.get(key) ?? 0) + value);
    },
    /** A value that is computed when the metrics are read. */
    gauge: (name: string, help: string, read: () => { labels?: Labels; value: number }[]) =>
      void gauges.push({ name, help, read }),
    text: () =>
      [
        ...[...values].map(([name, series]) => block(name, counters[name] ?? "", "counter", [...series])),
        ...gauges.map(({ name, help, read }) =>
          block(
            name,
            help,
            "gauge",
            read().map(({ labels = {}, value }) => [labelText(labels), value]),
          ),
        ),
      ].join(""),
  };
}

// Long operations and their results: each gets an id immediately, and clients poll for its result.

export type FutureResult =
  | { kind: "json"; body: Record<string, unknown> }
  | { kind: "protobuf"; body: Uint8Array }
  | { kind: "failure"; body: Failure }
  /** There is no result; sending the request again may give one. */
  | { kind: "gone"; why: string };

export interface FutureStoreOptions {
  /** How long a result is kept before it is collected. */
  keepMs?: number;
  /** How long a result is kept after it was first collected: the answer may have been lost. */
  keepCollectedMs?: number;
  now?: () => number;
  /** Rewrites the texts of failures for clients. */
  phrase?: (text: string) => string;
}

/** Settled futures are many and kept for minutes, so they hold only their result. */
interface Future {
  result?: FutureResult;
  expires: number;
  /** Until there is a result. */
  open: { settled: Notifier; cancel: AbortController } | null;
}

/** @param phrase rewrites texts for clients */
export function describeFailure(error: unknown, phrase: (text: string) => string = (text) => text): Failure {
  const text = messageOf(error);
  const user = error instanceof UserError;
  // Only the first line of a server's error is for clients: a worker's last output or a traceback may follow.
  const message = clipped(phrase(user ? text : text.split("\n", 1).join()));
  if (!(error instanceof HoneError)) return { error: message, category: "server" };
  const failure: Failure = { error: message, category: user ? "user" : "server", code: error.code, message };
  // Other hints are for the person who runs the server.
  if (error.hint !== undefined && (user || error.code === "state_lost")) {
    failure.hint = clipped(phrase(error.hint));
    failure.error = `${message}. ${failure.hint}`;
  }
  if (error instanceof NonFiniteGradientError) failure.grad_norm = String(error.gradNorm);
  return failure;
}

export type FutureStore = ReturnType<typeof createFutureStore>;

export function createFutureStore(options: FutureStoreOptions = {}) {
  const { keepMs = 3_600_000, keepCollectedMs = 60_000, now = Date.now, phrase } = options;
  const futures = new Map<string, Future>();
  const listeners: ((id: string, result: FutureResult) => void)[] = [];
  let pending = 0;

  function settle(id: string, future: Future, result: FutureResult): void {
    if (future.result) return;
    pending--;
    future.result = result;
    future.expires = now() + keepMs;
    for (const listener of listeners) listener(id, result);
    future.open?.settled.notify();
    future.open = null;
  }

  return {
    /**
     * Runs `work` under this id. A repeated id does nothing: it is the retry of a request whose answer was lost.
     * Errors of `work` become failures: the user's mistakes as such, everything else as the server's.
     */
    start(id: string, work: (signal: AbortSignal) => Promise<FutureResult>): void {
      if (futures.has(id)) return;
      const cancel = new AbortController();
      const future: Future = { expires: Number.POSITIVE_INFINITY, open: { settled: new Notifier(), cancel } };
      futures.set(id, future);
      pending++;
      // Starts in a later turn of the event loop, so that the id is answered first.
      void Promise.resolve()
        .then(() => work(cancel.signal))
        .then(
          (result) => settle(id, future, result),
          (error: unknown) => settle(id, future, { kind: "failure", body: describeFailure(error, phrase) }),
        );
    },
    has: (id: string) => futures.has(id),
    /** The result; "pending" if `waitMs` or the signal ended first; "unknown" for an id that is not stored. */
    async collect(id: string, waitMs: number, signal?: AbortSignal): Promise<FutureResult | "pending" | "unknown"> {
      const future = futures.get(id);
      if (!future) return "unknown";
      if (waitMs > 0) await future.open?.settled.wait({ ms: waitMs, signal });
      if (!future.result) return "pending";
      future.expires = Math.min(future.expires, now() + keepCollectedMs);
      return future.result;
    },
    /** Asks the work to end early. */
    cancel: (id: string) => futures.get(id)?.open?.cancel.abort(),
    /** Called when any work ends, with its result. */
    onSettled: (listener: (typeof listeners)[number]) => void listeners.push(listener),
    /** Drops expired results. */
    sweep(): void {
      for (const [id, { expires }] of futures) if (expires <= now()) futures.delete(id);
    },
    get size() {
      return { pending, settled: futures.size - pending };
    },
  };
}
