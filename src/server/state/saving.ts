/** What a training client can request for a model's weights: save, load, snapshot for sampling, export. */
import { z } from "zod";
import { UserError } from "../../errors.ts";
import { checkName, formatTinkerPath, type PathKind } from "../../tinker-protocol/tinker-path.ts";
import { clientMetadata, readBody } from "../bodies.ts";
import type { ServerContext } from "../context.ts";
import type { LiveModel } from "../models/live-models.ts";
import type { FutureResult } from "../queue/futures.ts";
import { expiry, findCheckpoint, requireCheckpoint } from "./checkpoints.ts";
import { type CheckpointRecord, checkpointRecord, type Snapshot } from "./records.ts";

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
