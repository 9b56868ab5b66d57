/** Starts the server: engines, store, service, HTTP, and regular clean-up. */
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { getRequestListener, RequestError } from "@hono/node-server";
import type { Hono } from "hono";
import type { Engine } from "../../backends/engine.ts";
import { UserError } from "../../base/errors.ts";
import { isLoopback, listen } from "../../base/http.ts";
import type { AddressRules } from "../../images/load-image.ts";
import { createApp, type OpenFeature } from "./app.ts";
import { type BaseModel, createBaseModel } from "./base-models.ts";
import {
  createFutureStore,
  createLog,
  createMetrics,
  type FutureStoreOptions,
  type Metrics,
  type ServerContext,
  type UseListener,
} from "./context.ts";
import { createService, type Service } from "./service.ts";
import { expireCheckpoints } from "./sessions.ts";
import { openStore } from "./store.ts";

export interface ServerOptions {
  /** With the names that clients may use, the listed one first. */
  engines: readonly {
    names: readonly string[];
    engine: Engine;
    /** Opens it again after it has died. Default: a dead engine is not restarted. */
    reopen?: () => Promise<Engine>;
  }[];
  /** Where sessions and checkpoints are kept. */
  stateFolder: string;
  apiKey?: string | null;
  /** How long the server waits for a missing sequence id. */
  gapSeconds?: number;
  /** Seconds that a poll is held open; below the 45 s that clients wait. */
  pollSeconds?: number;
  /** Minutes without a request after which a session's models are closed. */
  sessionMinutes?: number;
  /** Unused models that stay in memory; others are on disk until they are used again. */
  maxIdleModels?: number;
  /** The most waiting operations of one model. */
  maxWaitingOperations?: number;
  /** The most sequences that wait to be sampled, on each base model. */
  maxWaitingRows?: number;
  /** From which hosts images are fetched whose address a client sends. Default: none. */
  imageHosts?: AddressRules;
  futures?: FutureStoreOptions;
  /** Parts that no training loop needs. Default: none. */
  features?: readonly OpenFeature[];
  /** Gets the lines of the log. */
  write?: (line: string) => void;
  now?: () => Date;
}

export interface RunningService {
  app: Hono;
  service: Service;
  /** The regular clean-up. */
  sweep(): Promise<void>;
  close(): Promise<void>;
}

const sweepMs = 30_000;

/** The server without a port, for tests and for `startServer`. @throws UserError when the folder is in use */
export async function openService(options: ServerOptions): Promise<RunningService> {
  const now = options.now ?? (() => new Date());
  const store = openStore(options.stateFolder);
  const metrics = createMetrics();
  const log = createLog(options.write ?? (() => {}), now);
  const models: BaseModel[] = options.engines.map(({ names, engine, reopen }) =>
    createBaseModel(names, engine, options.maxWaitingRows ?? 8192, {
      reopen,
      fetching: {
        clients: options.imageHosts,
        log: (line) => log.warn("", line),
      },
      onDeath(error, opensAgain) {
        metrics.add("hone_engine_deaths_total", { model: names[0]! });
        const next = opensAgain ? "it is restarted" : "it is not restarted: stop the server and look for the cause";
        log.warn("", `the engine of ${names[0]} died; ${next}. ${error.message}`);
      },
      onBack: (seconds) => log.info("", `the engine of ${names[0]} is back after ${seconds.toFixed(1)} s`),
    }),
  );
  const useListeners: UseListener[] = [];
  const context: ServerContext = {
    store,
    models,
    futures: createFutureStore({ now: () => now().getTime(), ...options.futures }),
    metrics,
    log,
    use: (...used) => {
      for (const listener of useListeners) listener(...used);
    },
    useListeners,
    boot: randomUUID().slice(0, 8),
    gapMs: (options.gapSeconds ?? 30) * 1000,
    pollMs: (options.pollSeconds ?? 25) * 1000,
    sessionTimeoutMs: (options.sessionMinutes ?? 60) * 60_000,
    maxIdleModels: options.maxIdleModels ?? 8,
    maxWaitingOperations: options.maxWaitingOperations ?? 512,
    now,
  };
  const service = createService(context);
  defineGauges(service);
  await store.collectGarbage();

  const features = (options.features ?? []).map((open) => open(service));
  const sweepFeatures = () => {
    for (const feature of features) feature.sweep?.();
  };

  async function sweep(): Promise<void> {
    sweepFeatures();
    context.futures.sweep();
    service.completions.sweep();
    await service.sessions.closeIdle();
    await service.sessions.evictIdle();
    const inUse = service.samplers.sweep();
    const expired = expireCheckpoints(context);
    if (expired > 0) context.log.info("", `${expired} checkpoints have expired`);
    await store.collectGarbage(inUse);
  }
  return {
    app: createApp(service, options.apiKey ?? null, features),
    service,
    sweep,
    async close() {
      for (const { supervisor } of models) supervisor.stop();
      sweepFeatures();
      store.close();
    },
  };
}

export interface RunningServer extends RunningService {
  /** `http://host:port` */
  url: string;
}

/** @throws UserError for an address that other machines can reach without a key */
export function requireKey({ host, apiKey }: { host: string; apiKey?: string | null | undefined }): void {
  if (isLoopback(host) || apiKey) return;
  throw new UserError(`--host ${host} can be reached from other machines, so it requires an API key`, {
    hint: "Add --api-key tml-..., or set HONE_API_KEY. Clients must set TINKER_API_KEY to the same key.",
  });
}

/** @throws UserError for an address that other machines can reach without a key, or that is in use */
export async function startServer(options: ServerOptions & { host: string; port: number }): Promise<RunningServer> {
  const { host, port } = options;
  requireKey(options);
  const running = await openService(options);
  const { context } = running.service;
  // Clients keep idle connections for 90 s; a server that closes them first makes requests fail now and then.
  const times = { keepAliveTimeout: 120_000, headersTimeout: 125_000, requestTimeout: 0 };
  const server = createServer(times, getRequestListener(running.app.fetch, { errorHandler: describeBadRequest }));
  const url = await listen(server, { host, port }).catch(async (error: NodeJS.ErrnoException) => {
    await running.close();
    const { code, message } = error;
    if (code !== "EADDRINUSE" && code !== "EADDRNOTAVAIL" && code !== "EACCES") throw error;
    throw new UserError(`cannot listen on ${host}:${port}: ${message}`, {
      hint: "Choose another --port, or --port 0 for any free port.",
      cause: error,
    });
  });
  const unwatch = watchEventLoop(context.metrics);
  const timers = [
    setInterval(() => {
      running.sweep().catch((error: unknown) => context.log.warn("", `the regular clean-up failed: ${error}`));
    }, sweepMs),
    setInterval(() => context.log.summarize(), 10_000),
  ];
  return {
    ...running,
    url,
    async close() {
      unwatch();
      for (const timer of timers) clearInterval(timer);
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      });
      await running.close();
    },
  };
}

/** Answers a request that does not reach the app because its Host or address is invalid. */
function describeBadRequest(error: unknown): Response {
  if (!(error instanceof RequestError)) return Response.json({ detail: "the server failed" }, { status: 500 });
  return Response.json({ detail: `the request cannot be read: ${error.message}` }, { status: 400 });
}

function defineGauges({ context, sessions, samplers }: Service): void {
  const { metrics, models, futures, store } = context;
  const single = (name: string, help: string, read: () => number) =>
    metrics.gauge(name, help, () => [{ value: read() }]);
  const perModel = (name: string, help: string, read: (state: BaseModel["scheduler"]["state"]) => number) =>
    metrics.gauge(name, help, () =>
      models.map((model) => ({ labels: { model: model.name }, value: read(model.scheduler.state) })),
    );
  single("hone_sessions", "Sessions with a recent request.", () => sessions.counts.active);
  single("hone_models", "Models whose weights are in memory.", () => sessions.counts.models);
  single("hone_samplers", "Frozen weights in memory.", () => samplers.open);
  single("hone_checkpoints", "Checkpoints on disk.", () => store.checkpoints.size);
  single("hone_resident_bytes", "Memory of the server's own process.", () => process.memoryUsage.rss());
  metrics.gauge("hone_futures", "Operations in progress, and kept results.", () =>
    Object.entries(futures.size).map(([state, value]) => ({ labels: { state }, value })),
  );
  perModel("hone_training_waiting", "Training jobs that wait for the engine.", (state) => state.trainingWaiting);
  perModel("hone_training_running", "Whether the engine trains.", (state) => state.training);
  perModel("hone_sequences_waiting", "Sequences that wait to be sampled.", (state) => state.rowsWaiting);
  perModel("hone_sequences_sampling", "Sequences that are being sampled.", (state) => state.rows);
}

/** Measures how late the event loop is: meanwhile no request is answered. Returns the function that stops it. */
function watchEventLoop(metrics: Metrics): () => void {
  const delay = monitorEventLoopDelay({ resolution: 10 });
  delay.enable();
  metrics.gauge("hone_event_loop_seconds", "Delay of the event loop since the last reading.", () => {
    const quantiles = { "0.99": delay.percentile(99), "1": delay.max };
    delay.reset();
    return Object.entries(quantiles).map(([quantile, value]) => ({ labels: { quantile }, value: value / 1e9 }));
  });
  return () => void delay.disable();
}
