/** The service behind the routes, without HTTP: operations behind futures, models, sampling sessions. */
import { randomInt } from "node:crypto";
import { z } from "zod";
import type { Capabilities, Policy } from "../../backends/engine.ts";
import { formatTinkerPath, loraConfig, wholeAtLeast } from "../../backends/tinker/handshake.ts";
import { Notifier } from "../../base/concurrency.ts";
import { HoneError, messageOf, UserError } from "../../base/errors.ts";
import {
  type BaseModel,
  createSnapshotPool,
  findBaseModel,
  requireBaseModel,
  type SnapshotUse,
} from "./base-models.ts";
import type { FutureResult, FutureStore, ServerContext } from "./context.ts";
import { clientMetadata, HttpError, readBody } from "./http.ts";
import { type LiveModel, modelId } from "./live-models.ts";
import { createSessions, requireCheckpoint, requireLoadable, type Sessions } from "./sessions.ts";
import {
  type LoraAdapter,
  modelRecord,
  type SamplerRecord,
  type SessionRecord,
  type Snapshot,
  samplerRecord,
} from "./store.ts";

export type Service = ReturnType<typeof createService>;

export function createService(context: ServerContext) {
  const sessions = createSessions(context);
  return {
    context,
    sessions,
    samplers: createSamplers(context, sessions),
    operations: createOperations(context, sessions),
    completions: createCompletions(context.futures),
  };
}

// Starts operations behind futures: logged, counted, and for a model in the order of its requests.

/** The most bytes of waiting requests, of all models together. */
const maxWaitingBytes = 1 << 29;

interface Operation {
  kind: string;
  /** What it works on, for the log: " of 3 datums". */
  details?: string;
  work(signal: AbortSignal): Promise<FutureResult>;
}

function createOperations({ futures, log, metrics, boot, now }: ServerContext, sessions: Sessions) {
  let waitingBytes = 0;

  /** @param owner the model or sampler, for the log */
  function start(id: string, owner: string, { kind, details = "", work }: Operation): void {
    const begin = performance.now();
    futures.start(id, async (signal) => {
      let outcome = "failed";
      try {
        const result = await work(signal);
        outcome = result.kind === "gone" ? "gone" : "ok";
        const seconds = ((performance.now() - begin) / 1000).toFixed(2);
        if (kind !== "sample") log.info(owner, `${kind}${details}, ${seconds} s`);
        return result;
      } catch (error) {
        const [first = "", ...rest] = messageOf(error).split("\n");
        if (error instanceof HoneError && error.details) rest.push(error.details);
        log.warn(owner, `${kind}${details} failed: ${first}`, rest.length === 0 ? undefined : rest.join("\n"));
        throw error;
      } finally {
        metrics.add("hone_operations_total", { kind, outcome });
        metrics.add("hone_operation_seconds_total", { kind }, (performance.now() - begin) / 1000);
      }
    });
  }

  return {
    start,

    /**
     * Accepts an operation of a model. Its failures are reported by its future.
     * @param seq its place among the model's requests; null: after all others
     * @param bytes of the request, counted while it waits
     * @throws HttpError 429 when the queue is full
     */
    accept(model: LiveModel, seq: number | null, bytes: number, operation: Operation): Record<string, unknown> {
      sessions.touch(model.session.id);
      const number = seq ?? model.sequencer.free;
      const id = `${model.id}:${number}@${boot}`;
      const answer = { request_id: id, model_id: model.id };
      if (futures.has(id)) return answer;
      const full = waitingBytes + bytes > maxWaitingBytes && number !== model.sequencer.next;
      if (full || !model.sequencer.hasRoom(number)) {
        metrics.add("hone_refused_total", { queue: "training" });
        throw new HttpError(429, `the queue of ${model.id} is full; try again`);
      }
      waitingBytes += bytes;
      model.record.lastRequestAt = now().toISOString();
      const work = async (signal: AbortSignal) => {
        try {
          return await model.sequencer.run(number, () => operation.work(signal));
        } finally {
          waitingBytes -= bytes;
          model.markEnded(number);
        }
      };
      start(id, model.id, { ...operation, work });
      return answer;
    },
  };
}

// Creates models: new ones, and from checkpoints.

const common = {
  session_id: z.string(),
  model_seq_id: wholeAtLeast(0),
  user_metadata: clientMetadata.nullish(),
  optimizer_config: z.looseObject({ type: z.string() }).nullish(),
};
const createModelSchema = z.looseObject({ ...common, base_model: z.string(), lora_config: loraConfig.nullish() });
const createFromSchema = z.looseObject({
  ...common,
  path: z.string(),
  optimizer: z.boolean(),
  base_model: z.string().nullish(),
});
type CommonRequest = Pick<z.output<typeof createModelSchema>, keyof typeof common>;

type ModelCreation = Pick<Service, "context" | "sessions" | "operations">;

export function createModel(creation: ModelCreation, body: unknown): Record<string, unknown> {
  const { models } = creation.context;
  const request = readBody(createModelSchema, body);
  const { engine } = findBaseModel(models, request.base_model);
  const adapter = adapterOf(request.lora_config ?? loraConfig.parse({}), engine.capabilities);
  return addModel(creation, request, "create_model", () => ({ baseModel: request.base_model, adapter }), {});
}

/** A new model with the weights, and on request the optimizer state, of a checkpoint. */
export function createModelFrom(creation: ModelCreation, body: unknown): Record<string, unknown> {
  const { context } = creation;
  const request = readBody(createFromSchema, body);
  const { path, optimizer, base_model } = request;
  const make = () => {
    const checkpoint = requireLoadable(context, path, optimizer);
    requireBaseModel(context.models, { path, baseModel: checkpoint.baseModel }, base_model);
    return {
      baseModel: base_model ?? checkpoint.baseModel,
      adapter: checkpoint.adapter,
      state: { data: checkpoint.data, optimizer },
      lastSaved: formatTinkerPath(checkpoint),
    };
  };
  return addModel(creation, request, "load_weights", make, { path });
}

/** Records a model and opens it. When that fails, the record is removed. */
function addModel(
  { context, sessions, operations }: ModelCreation,
  { session_id, model_seq_id: number, optimizer_config: optimizer, user_metadata }: CommonRequest,
  kind: string,
  make: () => Pick<z.input<typeof modelRecord>, "baseModel" | "adapter" | "state" | "lastSaved">,
  answer: Record<string, unknown>,
): Record<string, unknown> {
  const session = sessions.touch(session_id);
  if (optimizer && optimizer.type !== "adamw") {
    throw new UserError(`the optimizer "${optimizer.type}" is not supported: models here are trained with AdamW`);
  }
  const id = modelId(session.id, number);
  const request = `${id}:0@${context.boot}`;
  const work = async () => {
    if (!sessions.findModel(id)) {
      const time = context.now().toISOString();
      session.models.push(
        modelRecord.parse({ ...make(), number, userMetadata: user_metadata, createdAt: time, lastRequestAt: time }),
      );
    }
    try {
      await sessions.requireModel(id).compute(async () => {});
    } catch (error) {
      session.models = session.models.filter((model) => model.number !== number);
      sessions.forgetModel(id);
      throw error;
    }
    context.store.saveSession(session);
    return { kind: "json" as const, body: { type: kind, ...answer, model_id: id } };
  };
  operations.start(request, id, { kind, work });
  return { request_id: request, model_id: id };
}

/** `lora_config` of the protocol as an adapter of an engine. @throws UserError when nothing would be trained, or the engine cannot */
export function adapterOf(config: z.output<typeof loraConfig>, { loraTargets }: Capabilities): LoraAdapter {
  const { rank, alpha, seed, train_attn, train_mlp, train_unembed } = config;
  const wanted = { attn: train_attn, mlp: train_mlp, unembed: train_unembed };
  const targets = (["attn", "mlp", "unembed"] as const).filter((target) => wanted[target]);
  if (targets.length === 0) throw new UserError("at least one of train_attn, train_mlp and train_unembed must be true");
  const missing = targets.filter((target) => !loraTargets.includes(target));
  if (missing.length > 0) throw new UserError(`this engine does not support LoRA on ${missing.join(", ")}`);
  return { kind: "lora", rank, alpha, targets, seed: seed ?? randomInt(2 ** 47) };
}

// Sampling sessions: the weights that requests sample from, fixed when the session is created.

const createSchema = z.looseObject({
  session_id: z.string(),
  sampling_session_seq_id: z.int().min(0),
  base_model: z.string().nullish(),
  model_path: z.string().nullish(),
});

export const samplerId = (session: string, number: number): string => `${session}:sample:${number}`;

/**
 * How long unnamed weights are kept after their last use; the newest of a session are always kept. When a session has more
 * than `manyUnnamed`, the older ones are dropped sooner, so that a fast trainer does not fill the disk.
 */
const keepUnusedMs = 3_600_000;
const keepOfManyMs = 60_000;
const manyUnnamed = 16;
/** How many names of dropped weights are remembered. */
const maxGone = 512;

function createSamplers(context: ServerContext, sessions: Sessions) {
  const { store } = context;
  const pool = createSnapshotPool(store);
  const used = new Map<string, number>();
  const started = context.now().getTime();

  function add(session: SessionRecord, sampler: z.input<typeof samplerRecord>): string {
    const id = samplerId(session.id, sampler.number);
    if (session.samplers.some(({ number }) => number === sampler.number)) return id;
    session.samplers.push(samplerRecord.parse(sampler));
    store.saveSession(session);
    used.set(id, context.now().getTime());
    return id;
  }

  /** @throws HttpError 404 */
  function require(id: unknown): { session: SessionRecord; sampler: SamplerRecord; base: BaseModel } {
    const [, sessionId = "", number] = (typeof id === "string" && /^(.+):sample:(\d+)$/.exec(id)) || [];
    const session = store.sessions.get(sessionId);
    const sampler = session?.samplers.find((each) => each.number === Number(number));
    if (!session || !sampler) throw new HttpError(404, `there is no sampling session ${JSON.stringify(id)}`);
    return { session, sampler, base: findBaseModel(context.models, sampler.baseModel) };
  }

  return {
    /** Idempotent by (session, number). @throws UserError for an unknown model or checkpoint */
    create(body: unknown): string {
      const { session_id, sampling_session_seq_id: number, base_model, model_path } = readBody(createSchema, body);
      const session = sessions.touch(session_id);
      if (session.samplers.some((sampler) => sampler.number === number)) return samplerId(session.id, number);
      if (!model_path) {
        if (!base_model) throw new UserError("either base_model or model_path must be given");
        findBaseModel(context.models, base_model);
        return add(session, { number, baseModel: base_model, weights: "base" });
      }
      const { data, adapter, baseModel } = requireCheckpoint(context, model_path);
      requireBaseModel(context.models, { path: model_path, baseModel }, base_model);
      return add(session, { number, baseModel, modelPath: model_path, weights: { data, adapter } });
    },
    add,
    require,
    /** Returns a number for a copy of the sampler's client, from 1. */
    join(id: unknown): number {
      const { session, sampler } = require(id);
      sampler.clients++;
      store.saveSession(session);
      return sampler.clients;
    },
    /** Runs `use` with the policy that the sampler samples from. */
    async use<T>(id: string, how: SnapshotUse, use: (policy: Policy) => Promise<T>): Promise<T> {
      const { session, sampler, base } = require(id);
      used.set(id, context.now().getTime());
      const { weights } = sampler;
      if (weights === "base") return use(await base.base.get());
      const snapshot = weights !== "gone" && "inflight" in weights ? session.inflight[weights.inflight] : weights;
      if (!snapshot || snapshot === "gone") {
        throw new UserError(
          `the weights of ${id} were dropped: unnamed weights are dropped when newer ones exist and they were not used for an hour (a minute if there are many), or when their session is over. Name weights that must stay: save_weights_for_sampler(name)`,
        );
      }
      return pool.use(base, snapshot, how, use);
    },
    /** The same for the weights of a checkpoint, without a sampling session. */
    useSnapshot: <T>(
      base: BaseModel,
      snapshot: Snapshot,
      as: SnapshotUse,
      use: (policy: Policy) => Promise<T>,
    ): Promise<T> => pool.use(base, snapshot, as, use),
    /** Drops old unnamed weights. Returns the folders in use. */
    sweep(): ReadonlySet<string> {
      for (const session of store.sessions.values()) {
        const over = sessions.isOver(session);
        const unnamed = session.samplers
          .filter(({ weights, modelPath }) => weights !== "base" && weights !== "gone" && modelPath === null)
          .sort((left, right) => right.number - left.number);
        const dropped = unnamed.filter(({ number }, newer) => {
          const silent = context.now().getTime() - (used.get(samplerId(session.id, number)) ?? started);
          if (over) return session.finished !== null || silent > keepUnusedMs;
          return newer > 0 && silent > (newer < manyUnnamed ? keepUnusedMs : keepOfManyMs);
        });
        if (dropped.length === 0) continue;
        for (const sampler of dropped) {
          sampler.weights = "gone";
          used.delete(samplerId(session.id, sampler.number));
        }
        const gone = session.samplers.filter(({ weights }) => weights === "gone");
        const forgotten = new Set(gone.slice(0, Math.max(0, gone.length - maxGone)));
        session.samplers = session.samplers.filter((sampler) => !forgotten.has(sampler));
        if (over) session.inflight = {};
        store.saveSession(session);
      }
      return pool.inUse;
    },
    get open() {
      return pool.size;
    },
  };
}

// Lists the ended requests of each sampling session, which clients read with a cursor.

interface Completion {
  cursor: number;
  request: string;
  body: Record<string, unknown>;
}

/** Copy k of a sampling client numbers its requests from k times this. */
const idsPerClient = 1_000_000_000n;

/** Names a sampling session and which copy of its client asks. */
export const completionTarget = (sampler: string, client: bigint): string => `${sampler}/${client}`;

/** The oldest entries of longer lists are dropped. */
const longestList = 10_000;

function createCompletions(futures: FutureStore) {
  const lists = new Map<string, { ended: Completion[]; next: number; changed: Notifier }>();
  const listOf = (target: string) => {
    const found = lists.get(target) ?? { ended: [], next: 1, changed: new Notifier() };
    lists.set(target, found);
    return found;
  };

  futures.onSettled((id, result) => {
    const [, sampler, number] = /^(.+:sample:\d+):(\d+)@/.exec(id) ?? [];
    if (sampler === undefined || number === undefined) return;
    const list = listOf(completionTarget(sampler, BigInt(number) / idsPerClient));
    const body: Record<string, unknown> = { state: result.kind === "failure" ? "failed" : "finished", request_id: id };
    if (result.kind === "protobuf") body.response_payload_uncompressed_size = result.body.byteLength;
    list.ended.push({ cursor: list.next++, request: id, body });
    list.ended.splice(0, Math.max(0, list.ended.length - longestList));
    list.changed.notify();
  });

  return {
    /** The requests that ended after `cursor`, waiting up to `waitMs` for the first. Drops those before it. */
    async read(target: string, cursor: number, waitMs: number, signal?: AbortSignal) {
      const list = listOf(target);
      list.ended = list.ended.filter((completion) => completion.cursor > cursor);
      if (list.ended.length === 0 && waitMs > 0) await list.changed.wait({ ms: waitMs, signal });
      const completions = list.ended.map(({ body }) => body);
      return { completions, cursor: list.ended.at(-1)?.cursor ?? cursor };
    },
    /** Drops requests whose results are no longer kept. */
    sweep(): void {
      for (const list of lists.values()) list.ended = list.ended.filter(({ request }) => futures.has(request));
    },
  };
}
