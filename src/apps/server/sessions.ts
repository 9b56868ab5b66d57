/** The sessions of clients, their checkpoints, and what a training client can request for its weights. */
import { randomUUID } from "node:crypto";
import { z } from "zod";
import {
  checkName,
  checkpointKinds,
  formatTinkerPath,
  type PathKind,
  parseTinkerPath,
} from "../../backends/tinker/handshake.ts";
import { messageOf, UserError } from "../../base/errors.ts";
import type { FutureResult, ServerContext } from "./context.ts";
import { clientMetadata, clientName, clientTags, HttpError, readBody } from "./http.ts";
import { createLiveModel, isEvictable, type LiveModel, modelId } from "./live-models.ts";
import { type CheckpointRecord, checkpointRecord, type SessionRecord, type Snapshot, sessionRecord } from "./store.ts";

// Sessions, and their models in memory.

const createSchema = z.looseObject({
  tags: clientTags.nullish(),
  user_metadata: clientMetadata.nullish(),
  display_name: clientName.nullish(),
  project_id: clientName.nullish(),
});

/** Models that were used since then stay in memory, regardless of their number. */
const evictAfterMs = 30_000;

export type Sessions = ReturnType<typeof createSessions>;

export function createSessions(context: ServerContext) {
  const { store, log } = context;
  const live = new Map<string, LiveModel>();
  const seen = new Map<string, number>();
  const nowMs = () => context.now().getTime();
  const started = nowMs();

  const silentMs = (id: string) => nowMs() - (seen.get(id) ?? started);
  const unusedMs = ({ record }: LiveModel) => nowMs() - Date.parse(record.lastRequestAt);

  /** Whether the session is finished or has been silent for long. */
  const isOver = (session: SessionRecord) =>
    session.finished !== null || silentMs(session.id) >= context.sessionTimeoutMs;

  const modelsOf = (session: SessionRecord): LiveModel[] =>
    session.models.flatMap(({ number }) => live.get(modelId(session.id, number)) ?? []);

  async function closeModels(session: SessionRecord, why: string): Promise<void> {
    for (const model of modelsOf(session)) {
      live.delete(model.id);
      if (!model.open) continue;
      await model.close();
      const lost = model.record.dirty || model.record.unstepped ? "; unsaved changes are lost" : "";
      log.info(model.id, `closed: ${why}${lost}`);
    }
  }

  /** @throws HttpError 404 when it does not exist */
  function require(id: unknown): SessionRecord {
    const session = typeof id === "string" ? store.sessions.get(id) : undefined;
    if (!session) throw new HttpError(404, `there is no session ${JSON.stringify(id)}`);
    return session;
  }

  function findModel(id: string): LiveModel | undefined {
    const existing = live.get(id);
    if (existing) return existing;
    const [, sessionId = "", number] = /^(.+):train:(\d+)$/.exec(id) ?? [];
    const session = store.sessions.get(sessionId);
    const record = session?.models.find((model) => model.number === Number(number));
    if (!session || !record) return undefined;
    const model = createLiveModel(context, session, record);
    live.set(id, model);
    return model;
  }

  return {
    create(body: unknown): SessionRecord {
      const { tags, user_metadata, display_name, project_id } = readBody(createSchema, body);
      const session = sessionRecord.parse({
        id: randomUUID(),
        createdAt: context.now().toISOString(),
        tags: tags ?? [],
        userMetadata: user_metadata,
        displayName: display_name,
        projectId: project_id,
      });
      store.saveSession(session);
      seen.set(session.id, nowMs());
      log.info(session.id, `session begins${display_name ? ` ("${display_name}")` : ""}`);
      return session;
    },
    require,
    /** Notes that the session is alive. @throws HttpError 404 when it does not exist, 410 when it is finished */
    touch(id: unknown): SessionRecord {
      const session = require(id);
      if (session.finished)
        throw new HttpError(410, `the session ${session.id} is finished: ${session.finished.reason}`);
      seen.set(session.id, nowMs());
      return session;
    },
    /** The first reason counts. */
    async finish(id: string, reason: string, detail: string | null): Promise<void> {
      const session = require(id);
      if (session.finished) return;
      session.finished = { reason, detail, at: context.now().toISOString() };
      store.saveSession(session);
      seen.delete(id);
      log.info(id, `session finished: ${reason}${detail ? ` (${detail})` : ""}`);
      await closeModels(session, "its session is finished");
    },
    findModel,
    /** @throws HttpError 404 when it does not exist */
    requireModel(id: unknown): LiveModel {
      const model = typeof id === "string" ? findModel(id) : undefined;
      if (!model) throw new HttpError(404, `there is no model ${JSON.stringify(id)}`);
      return model;
    },
    /** Undefined for a model that has not been used since the server started. */
    liveModel: (id: string) => live.get(id),
    /** For a model that could not be created. */
    forgetModel: (id: string) => void live.delete(id),
    /** Frees the memory of sessions whose clients have been silent for long. */
    async closeIdle(): Promise<void> {
      for (const session of store.sessions.values()) {
        if (session.finished || !isOver(session)) continue;
        if (modelsOf(session).some((model) => !model.sequencer.idle)) continue;
        const minutes = Math.round(silentMs(session.id) / 60_000);
        await closeModels(session, `no request came from its client for ${minutes} minutes`);
      }
    },
    /** Moves unused models to disk, except for the newest few. */
    async evictIdle(): Promise<void> {
      const unused = [...live.values()]
        .filter((model) => isEvictable(model) && unusedMs(model) >= evictAfterMs)
        .sort((left, right) => unusedMs(left) - unusedMs(right));
      for (const model of unused.slice(context.maxIdleModels)) {
        if (!(await model.evict())) continue;
        context.metrics.add("hone_evicted_models_total", {});
        log.info(model.id, "moved to disk: more models are idle than --max-idle-models keeps in memory");
      }
    },
    isOver,
    get counts() {
      const active = [...store.sessions.values()].filter((session) => !isOver(session)).length;
      return { active, models: [...live.values()].filter(({ open }) => open).length };
    },
  };
}

// Finds and expires checkpoints. A checkpoint is a record that names a folder of weights.

const ttl = { least: 3600, most: 10 * 366 * 86_400 };

/** @throws UserError for a time to live that is not allowed */
export function expiry(context: ServerContext, seconds: number | null): string | null {
  if (seconds === null) return null;
  if (!Number.isInteger(seconds) || seconds < ttl.least || seconds > ttl.most) {
    throw new UserError(
      `ttl_seconds is ${seconds}; it must be between ${ttl.least} (an hour) and ten years, or absent`,
    );
  }
  return new Date(context.now().getTime() + seconds * 1000).toISOString();
}

/** Undefined if there is none or it has expired. */
function findCheckpoint(context: ServerContext, path: string): CheckpointRecord | undefined {
  const found = context.store.checkpoints.get(path);
  return found && !isExpired(context, found) ? found : undefined;
}

/** @throws UserError when there is no such checkpoint, naming others of the run */
export function requireCheckpoint(context: ServerContext, path: string, kinds?: readonly PathKind[]): CheckpointRecord {
  const { run, kind } = parseTinkerPath(path);
  const found = findCheckpoint(context, path);
  if (!found) {
    const others = checkpointsOf(context, run).map(formatTinkerPath);
    const rest = others.length > 0 ? `. That run has ${others.slice(-5).join(", ")}` : "";
    throw new UserError(`there is no checkpoint ${path}${rest}`);
  }
  if (kinds && !kinds.includes(kind))
    throw new UserError(`${path} cannot be used here: it must be in ${kinds.join(" or ")}`);
  return found;
}

/** Where a checkpoint is, among the routes. */
export const checkpointAddress = "/training_runs/:run/checkpoints/:kind/:name";

/** The checkpoint at its address. @throws HttpError 404 */
export function checkpointAt(
  context: ServerContext,
  { run, kind, name }: { run: string; kind: string; name: string },
): CheckpointRecord {
  try {
    return requireCheckpoint(context, `tinker://${run}/${kind}/${name}`);
  } catch (cause) {
    throw new HttpError(404, messageOf(cause), { cause });
  }
}

/** A checkpoint as clients see it. */
export function checkpointBody(checkpoint: CheckpointRecord) {
  return {
    checkpoint_id: `${checkpoint.kind}/${checkpoint.name}`,
    checkpoint_type: checkpointKinds[checkpoint.kind],
    time: checkpoint.createdAt,
    tinker_path: formatTinkerPath(checkpoint),
    size_bytes: checkpoint.sizeBytes,
    public: checkpoint.public,
    user_metadata: checkpoint.userMetadata,
    expires_at: checkpoint.expiresAt,
    base_model: checkpoint.baseModel,
  };
}

export function checkpointsOf(context: ServerContext, run: string): CheckpointRecord[] {
  return allCheckpoints(context).filter((checkpoint) => checkpoint.run === run);
}

/** Oldest first. */
export function allCheckpoints(context: ServerContext): CheckpointRecord[] {
  return [...context.store.checkpoints.values()]
    .filter((checkpoint) => !isExpired(context, checkpoint))
    .sort((left, right) => left.createdAt.localeCompare(right.createdAt));
}

const isExpired = (context: ServerContext, { expiresAt }: CheckpointRecord): boolean =>
  expiresAt !== null && new Date(expiresAt) <= context.now();

/** Deletes what has expired. Returns how many. */
export function expireCheckpoints(context: ServerContext): number {
  const expired = [...context.store.checkpoints.values()].filter((checkpoint) => isExpired(context, checkpoint));
  for (const checkpoint of expired) context.store.deleteCheckpoint(formatTinkerPath(checkpoint));
  return expired.length;
}

// What a training client can request for a model's weights: save, load, snapshot for sampling, export.

const common = { ttl_seconds: z.number().nullish(), user_metadata: clientMetadata.nullish() };
const saveSchema = z.looseObject({ path: z.string().nullish(), overwrite: z.boolean().nullish(), ...common });
const samplerSchema = z.looseObject({
  path: z.string().nullish(),
  sampling_session_seq_id: z.int().min(0).nullish(),
  kind: z.enum(["snapshot", "inflight"]).nullish(),
  ...common,
});
const externalSchema = z.looseObject({
  path: z.string(),
  ttl_seconds: z.number().nullish(),
  age_encryption_recipients: z.array(z.string()).nullish(),
});
const loadSchema = z.looseObject({ path: z.string(), optimizer: z.boolean() });

/** Writes weights into a new folder of the store. The model's policy then samples with those for a sampler. */
async function write(context: ServerContext, model: LiveModel, kind: PathKind): Promise<string> {
  const { data, folder } = context.store.newData();
  try {
    await model.compute(async (policy) => {
      if (kind === "external_weights") return policy.learner.export(folder, "adapter");
      await policy.learner.saveState(folder, { optimizer: kind === "weights" });
      if (kind === "sampler_weights") await model.base.published.publish(policy, data);
    });
    return data;
  } catch (error) {
    context.store.discard(data);
    throw error;
  }
}

interface SaveRequest {
  ttl_seconds?: number | null | undefined;
  user_metadata?: Record<string, unknown> | null | undefined;
  overwrite?: boolean | null | undefined;
}

/** @throws UserError for a name that is not allowed or taken, before anything is written */
async function save(
  context: ServerContext,
  model: LiveModel,
  kind: PathKind,
  name: string,
  { ttl_seconds, user_metadata, overwrite }: SaveRequest,
): Promise<{ path: string; data: string }> {
  const { store, now } = context;
  const path = formatTinkerPath({ run: model.id, kind, name: checkName(name) });
  if (!overwrite && findCheckpoint(context, path)) {
    throw new UserError(
      `${path} already exists; choose another name, or overwrite it (overwrite=True, save_state only)`,
    );
  }
  const expiresAt = expiry(context, ttl_seconds ?? null);
  const data = await write(context, model, kind);
  const { adapter, baseModel } = model.record;
  const record = checkpointRecord.parse({
    run: model.id,
    kind,
    name,
    createdAt: now().toISOString(),
    expiresAt,
    sizeBytes: store.sizeOf(data),
    userMetadata: user_metadata,
    baseModel,
    adapter,
    data,
  });
  context.use("checkpoint", model.session.id, model.base.name, 1);
  store.saveCheckpoint(record);
  return { path, data };
}

export async function saveWeights(context: ServerContext, model: LiveModel, body: unknown): Promise<FutureResult> {
  const request = readBody(saveSchema, body);
  const name = request.path ?? `auto-${model.sequencer.next - 1}`;
  const { path, data } = await save(context, model, "weights", name, request);
  model.record.lastSaved = path;
  model.markState({ data, optimizer: true });
  return { kind: "json", body: { type: "save_weights", path } };
}

/**
 * With a name: a sampler's checkpoint. Without: a sampling session of the frozen weights, or, in flight, of weights
 * that the model's later in-flight saves replace.
 *
 * @param addSampler creates the sampling session and returns its id
 */
export async function saveForSampler(
  context: ServerContext,
  model: LiveModel,
  body: unknown,
  addSampler: (number: number, weights: Snapshot | { inflight: string }) => string,
): Promise<FutureResult> {
  const request = readBody(samplerSchema, body);
  const type = "save_weights_for_sampler";
  if (typeof request.path === "string") {
    const { path } = await save(context, model, "sampler_weights", request.path, { ...request, overwrite: false });
    return { kind: "json", body: { type, path } };
  }
  const { sampling_session_seq_id: number, kind } = request;
  if (typeof number !== "number") throw new UserError("either path or sampling_session_seq_id must be given");
  const snapshot = { data: await write(context, model, "sampler_weights"), adapter: model.record.adapter };
  if (kind === "inflight") model.session.inflight[model.id] = snapshot;
  const id = addSampler(number, kind === "inflight" ? { inflight: model.id } : snapshot);
  return { kind: "json", body: { type, sampling_session_id: id } };
}

export async function saveExternal(context: ServerContext, model: LiveModel, body: unknown): Promise<FutureResult> {
  const { path: name, ttl_seconds, age_encryption_recipients: recipients } = readBody(externalSchema, body);
  const { engine, exports } = model.base.engine.capabilities;
  if (recipients && recipients.length > 0) {
    throw new UserError("age_encryption_recipients: this server does not encrypt exports");
  }
  if (!exports.includes("adapter")) throw new UserError(`the engine "${engine}" does not export adapters`);
  const { path } = await save(context, model, "external_weights", name, { ttl_seconds });
  return { kind: "json", body: { type: "save_weights_external", path } };
}

/** @throws UserError for a checkpoint that does not exist or does not hold such a state */
export function requireLoadable(context: ServerContext, path: string, optimizer: boolean): CheckpointRecord {
  const checkpoint = requireCheckpoint(context, path, ["weights", "external_weights"]);
  if (checkpoint.kind !== "external_weights" || !optimizer) return checkpoint;
  throw new UserError(`${path} holds weights without an optimizer: use create_training_client_from_state("${path}")`);
}

/** Rank and targets come from the checkpoint. An accumulated gradient is dropped. */
export async function loadWeights(context: ServerContext, model: LiveModel, body: unknown): Promise<FutureResult> {
  const { path, optimizer } = readBody(loadSchema, body);
  const checkpoint = requireLoadable(context, path, optimizer);
  if (!model.base.names.includes(checkpoint.baseModel)) {
    throw new UserError(
      `${path} belongs to the base model ${checkpoint.baseModel}, but this model is based on ${model.record.baseModel}`,
    );
  }
  await model.close();
  model.record.adapter = checkpoint.adapter;
  model.gradient = "none";
  model.record.lastSaved = formatTinkerPath(checkpoint);
  model.markState({ data: checkpoint.data, optimizer });
  // Loads it now, so that a checkpoint that cannot be read fails here.
  await model.compute(async () => {});
  return { kind: "json", body: { type: "load_weights", path, model_id: model.id } };
}
