/**
 * The base models that `hone serve` serves: one engine each, restarted when it dies, and the policies that sample from its frozen
 * snapshots.
 */
import { existsSync } from "node:fs";
import { basename, isAbsolute, normalize, resolve } from "node:path";
import type { Engine, Policy } from "../../backends/engine.ts";
import { EngineDied } from "../../backends/engine-parts.ts";
import { HoneError, messageOf, RunError, UserError } from "../../base/errors.ts";
import { nearest } from "../../base/text.ts";
import { type Fetching, type ImageLoader, imageLoader } from "../../images/load-image.ts";
import { createSampleGatherer, createScheduler, type SampleGatherer, type Scheduler } from "./scheduler.ts";
import type { Snapshot, Store } from "./store.ts";

export interface BaseModel {
  /** The name that is listed. */
  name: string;
  /** All names that clients may use. */
  names: readonly string[];
  /** Which model the engine holds and what it can do. */
  engine: Pick<Engine, "model" | "capabilities" | "images" | "imagesReason">;
  supervisor: EngineSupervisor;
  scheduler: Scheduler;
  gatherer: SampleGatherer;
  /** Loads images of clients; absent if the model reads only text. */
  loader: ImageLoader | undefined;
  /** The untrained base model, for sampling. */
  base: LazyPolicy;
  /** Its live models' policies, each of which samples with the snapshot that it published last. */
  published: PublishedPolicies;
}

export interface ServedModel {
  /** The name in `name=source`. Default: the source's own name, and for a folder also its last part. */
  alias?: string;
  source: string;
}

/** `my-name=./folder` or `./folder` or a hub id. */
export function readServedModel(text: string): ServedModel {
  const at = text.indexOf("=");
  return at > 0 ? { alias: text.slice(0, at), source: text.slice(at + 1) } : { source: text };
}

/** The names of a model, beginning with the listed one. */
export function namesOf({ alias, source }: ServedModel): string[] {
  const path = resolve(source);
  const isPath = existsSync(path);
  // A client on this machine can load the tokenizer from an absolute path.
  const own = isPath ? [path, source, basename(path)] : [source];
  return [...new Set(alias === undefined ? own : [alias, ...own])];
}

export function createBaseModel(
  names: readonly string[],
  engine: Engine,
  maxWaitingRows: number,
  options: SupervisorOptions & { fetching?: Fetching } = {},
): BaseModel {
  const supervisor = superviseEngine(engine, options);
  // A client on this machine can also load the tokenizer from the folder.
  const { directory } = engine.model;
  return {
    name: names[0]!,
    names: [...new Set([...names, ...(directory === "" ? [] : [directory])])],
    engine,
    supervisor,
    loader: engine.images && imageLoader(engine.images.store, options.fetching),
    scheduler: createScheduler({ maxRows: 256, maxWaitingRows }),
    gatherer: createSampleGatherer(),
    base: lazyPolicy(supervisor, (opened) => opened.createPolicy({ adapter: { kind: "none" } })),
    published: createPublishedPolicies(supervisor),
  };
}

/** The error of every request to a model whose engine is not restarted. */
export const engineDown = ({ name }: Pick<BaseModel, "name">, cause?: unknown): RunError =>
  new RunError(
    `the engine of ${name} is down and is not started again, so no request to it can succeed until the server is restarted. ${cause instanceof HoneError ? [cause.message.replace(/\.$/, ""), cause.hint].filter(Boolean).join(". ") : "Its log has the cause."}`,
    { code: "engine_down", cause },
  );

/** @throws UserError when no model is served under the name */
export function findBaseModel(models: readonly BaseModel[], name: string): BaseModel {
  const path = isAbsolute(name) ? normalize(name) : name;
  const found = models.find(({ names }) => names.includes(name) || names.includes(path));
  if (found) return found;
  const listed = models.map((model) => model.name);
  const near = nearest(
    name,
    models.flatMap(({ names }) => names),
  );
  const meant = near.length > 0 ? `. Did you mean ${near.join(" or ")}?` : "";
  throw new UserError(`this server does not serve the base model "${name}"${meant} Served: ${listed.join(", ")}`);
}

/** The model that the weights at `path` belong to. @throws UserError if another one is asked for */
export function requireBaseModel(
  models: readonly BaseModel[],
  { path, baseModel }: { path: string; baseModel: string },
  asked: string | null | undefined,
): void {
  const base = findBaseModel(models, baseModel);
  if (asked && findBaseModel(models, asked) !== base) {
    throw new UserError(`${path} belongs to the base model ${baseModel}, not to ${asked}`);
  }
}

// Restarts an engine that has died. Its policies are gone: their owners see another number of `deaths` and open new ones.

export interface SupervisorOptions {
  /** Without it a dead engine stays dead. */
  reopen?: (() => Promise<Engine>) | undefined;
  onDeath?: (error: Error, opensAgain: boolean) => void;
  onBack?: (seconds: number) => void;
  now?: () => number;
}

/** An engine that dies this often, each time this soon after its start or during it, is not reopened. */
const restartLimit = { earlyDeaths: 4, withinMs: 60_000 };

export type EngineSupervisor = ReturnType<typeof superviseEngine>;

function superviseEngine(first: Engine, options: SupervisorOptions = {}) {
  const { reopen, onDeath, onBack, now = () => performance.now() } = options;
  let current = Promise.resolve(first);
  let deaths = 0;
  let earlyDeaths = 0;
  let lost = false;
  let stopped = false;

  /** Tries again after each failure, except one that the next start would repeat. */
  async function open(): Promise<Engine> {
    const begin = now();
    for (;;) {
      try {
        const engine = await reopen!();
        onBack?.((now() - begin) / 1000);
        watch(engine);
        return engine;
      } catch (cause) {
        const error = new EngineDied(`its restart failed: ${messageOf(cause)}`, { cause });
        earlyDeaths++;
        lost = stopped || cause instanceof UserError || earlyDeaths >= restartLimit.earlyDeaths;
        if (!stopped) onDeath?.(error, !lost);
        if (lost) throw error;
      }
    }
  }

  function watch(engine: Engine): void {
    const begin = now();
    void engine.died?.then((reason) => {
      if (stopped) return;
      deaths++;
      earlyDeaths = now() - begin < restartLimit.withinMs ? earlyDeaths + 1 : 0;
      lost = reopen === undefined || earlyDeaths >= restartLimit.earlyDeaths;
      onDeath?.(reason, !lost);
      current = lost ? Promise.reject(reason) : open();
      // Requests that need it fail with the reason.
      current.catch(() => {});
    });
  }

  watch(first);
  return {
    /** Which model it holds and what it can do: the same after a restart. */
    facts: first as Pick<Engine, "model" | "capabilities">,
    get deaths() {
      return deaths;
    },
    /** It died too often, or cannot be opened again. */
    get lost() {
      return lost;
    },
    /** @throws EngineDied when the engine is lost */
    ready: () => current,
    /** Opens no more engines. */
    stop() {
      stopped = true;
    },
  };
}

type LazyPolicy = ReturnType<typeof lazyPolicy>;

interface LazyPolicyOptions {
  /** Called before the policy is opened again; state that `open` does not restore is lost. */
  onLost?: () => void;
  /** Closes a policy that others may use too. */
  close?: (policy: Policy) => Promise<void>;
}

/** A policy that is opened when it is first needed, and again after its engine has died. */
export function lazyPolicy(
  supervisor: EngineSupervisor,
  open: (engine: Engine) => Promise<Policy>,
  { onLost = () => {}, close = ({ learner }) => learner.close() }: LazyPolicyOptions = {},
) {
  let held: { policy: Promise<Policy>; deaths: number } | undefined;
  return {
    async get(): Promise<Policy> {
      if (held && held.deaths !== supervisor.deaths) {
        held = undefined;
        onLost();
      }
      held ??= { policy: supervisor.ready().then(open), deaths: supervisor.deaths };
      const mine = held;
      try {
        return await mine.policy;
      } catch (error) {
        // The next request may find more memory.
        if (held === mine) held = undefined;
        throw error;
      }
    },
    async close(): Promise<void> {
      const closing = held;
      held = undefined;
      if (closing?.deaths !== supervisor.deaths) return;
      const policy = await closing.policy.catch(() => undefined);
      if (policy) await close(policy);
    },
    get open() {
      return held !== undefined && held.deaths === supervisor.deaths;
    },
  };
}

// Policies that sample from frozen weights. A live model's policy samples with the weights that it last published, also
// while it is trained, so it serves the newest snapshot of its weights. A snapshot gets a policy of its own, opened on first
// use and closed when others need the room, after the live one publishes other weights or is closed.

/** `scores` also calls `forward`, `mostLikely` and `draws`, which on a live policy use the weights in training. */
export type SnapshotUse = "samples" | "scores";

interface Entry {
  policy: LazyPolicy;
  users: number;
}

/** Unused policies that stay open. */
const maxIdle = 4;

export function createSnapshotPool(store: Store) {
  // In the order of their last use.
  const entries = new Map<string, Entry>();

  async function open(engine: Engine, { data, adapter }: Snapshot): Promise<Policy> {
    const policy = await engine.createPolicy({ adapter });
    try {
      await policy.sampler.load(await policy.learner.loadState(store.folderOf(data), { optimizer: false }));
      return policy;
    } catch (error) {
      await policy.learner.close();
      throw error;
    }
  }

  function closeIdle(): void {
    const idle = [...entries].filter(([, { users }]) => users === 0);
    for (const [data, { policy }] of idle.slice(0, Math.max(0, idle.length - maxIdle))) {
      entries.delete(data);
      // An engine that has died has closed it already.
      policy.close().catch(() => {});
    }
  }

  return {
    /** Runs `use` with the policy of these weights. */
    async use<T>(
      { supervisor, published }: { supervisor: EngineSupervisor; published: PublishedPolicies },
      snapshot: Snapshot,
      how: SnapshotUse,
      use: (policy: Policy) => Promise<T>,
    ): Promise<T> {
      const { data } = snapshot;
      const live = how === "samples" ? published.borrow(data) : undefined;
      if (live) {
        try {
          return await use(live.policy);
        } finally {
          live.giveBack();
        }
      }
      const entry = entries.get(data) ?? {
        policy: lazyPolicy(supervisor, (engine) => open(engine, snapshot)),
        users: 0,
      };
      entries.delete(data);
      entries.set(data, entry);
      entry.users++;
      try {
        const policy = await entry.policy.get().catch((cause: unknown) => {
          if (cause instanceof UserError)
            throw new UserError(`the sampler's weights cannot be opened: ${cause.message}`, { cause });
          throw cause;
        });
        return await use(policy);
      } finally {
        entry.users--;
        closeIdle();
      }
    },
    /** Folders that are in use. */
    get inUse(): ReadonlySet<string> {
      return new Set(entries.keys());
    },
    get size() {
      return entries.size;
    },
  };
}

interface Published {
  policy: Policy;
  data: string;
  /** The engine's deaths at the time of publishing: policies from before the last one are gone. */
  deaths: number;
  users: number;
  closed: boolean;
}

export type PublishedPolicies = ReturnType<typeof createPublishedPolicies>;

function createPublishedPolicies(supervisor: EngineSupervisor) {
  const published = new Map<Policy, Published>();

  return {
    /**
     * Publishes the policy's weights, saved in the folder `data`, so that it samples with them. Does nothing while others
     * sample from the policy: they keep their weights, and the new weights get a policy of their own.
     */
    async publish(policy: Policy, data: string): Promise<void> {
      if (!supervisor.facts.capabilities.frozenSampler.lora) return;
      if ((published.get(policy)?.users ?? 0) > 0) return;
      published.delete(policy);
      const { deaths } = supervisor;
      await policy.sampler.load(await policy.learner.publish());
      published.set(policy, { policy, data, deaths, users: 0, closed: false });
    },
    /** A policy that samples with the weights of `data`, until it is given back; undefined if there is none. */
    borrow(data: string): { policy: Policy; giveBack(): void } | undefined {
      for (const [policy, { deaths }] of published) if (deaths !== supervisor.deaths) published.delete(policy);
      const entry = [...published.values()].find((each) => each.data === data);
      if (!entry) return undefined;
      entry.users++;
      return {
        policy: entry.policy,
        giveBack() {
          entry.users--;
          // An engine that has died has closed it already.
          if (entry.users === 0 && entry.closed) entry.policy.learner.close().catch(() => {});
        },
      };
    },
    /** Closes the policy when the last request that samples from it has ended. */
    async close(policy: Policy): Promise<void> {
      const entry = published.get(policy);
      published.delete(policy);
      if (!entry || entry.users === 0) return policy.learner.close();
      entry.closed = true;
    },
  };
}
