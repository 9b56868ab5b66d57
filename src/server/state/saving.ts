/** What a training client can ask of a model's weights: save, load, snapshot for sampling, export. */
import { z } from "zod";
import { UserError } from "../../errors.ts";
import { formatTinkerPath } from "../../tinker-protocol/tinker-path.ts";
import { clientMetadata } from "../client-names.ts";
import type { ServerContext } from "../context.ts";
import type { LiveModel } from "../models/live-models.ts";
import type { FutureResult } from "../queue/futures.ts";
import { type CheckpointRequest, planCheckpoint, requireCheckpoint } from "./checkpoints.ts";
import type { CheckpointRecord, Snapshot } from "./records.ts";

const metadata = clientMetadata.nullish();
const common = { ttl_seconds: z.number().nullish(), user_metadata: metadata };
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

/** @throws UserError that names the field */
export function readBody<S extends z.ZodType>(schema: S, body: unknown): z.output<S> {
  const parsed = schema.safeParse(body);
  if (!parsed.success) throw new UserError(z.prettifyError(parsed.error));
  return parsed.data;
}

/** Writes weights into a new folder of the store; those for a sampler are then what the model's policy samples with. */
async function write(
  context: ServerContext,
  model: LiveModel,
  what: "state" | "sampler" | "adapter",
): Promise<{ data: string; sizeBytes: number }> {
  const { data, folder } = context.store.newData();
  try {
    await model.compute(async (policy) => {
      if (what === "adapter") return policy.learner.export(folder, "adapter");
      await policy.learner.saveState(folder, { optimizer: what === "state" });
      if (what === "sampler") await model.base.standIns.publish(policy, data);
    });
    return { data, sizeBytes: context.store.sizeOf(data) };
  } catch (error) {
    context.store.discard(data);
    throw error;
  }
}

function record(
  context: ServerContext,
  model: LiveModel,
  { run, kind, name, userMetadata }: CheckpointRequest,
  expiresAt: string | null,
  written: { data: string; sizeBytes: number },
): CheckpointRecord {
  const { adapter, baseModel } = model.record;
  const createdAt = context.now().toISOString();
  context.usage.add("checkpoint", model.session.id, model.base.name, 1);
  return { run, kind, name, userMetadata, expiresAt, createdAt, public: false, baseModel, adapter, ...written };
}

export async function saveWeights(context: ServerContext, model: LiveModel, body: unknown): Promise<FutureResult> {
  const { path: name, ttl_seconds, overwrite, user_metadata } = readBody(saveSchema, body);
  const request = {
    run: model.id,
    kind: "weights" as const,
    name: name ?? `auto-${model.sequencer.next - 1}`,
    ttlSeconds: ttl_seconds ?? null,
    overwrite: overwrite ?? false,
    userMetadata: user_metadata ?? null,
  };
  const { path, expiresAt } = planCheckpoint(context, request);
  const written = await write(context, model, "state");
  context.store.saveCheckpoint(record(context, model, request, expiresAt, written));
  model.record.lastSaved = path;
  model.markState({ data: written.data, optimizer: true });
  return { kind: "json", body: { type: "save_weights", path } };
}

/**
 * With a name: a sampler's checkpoint. Without: a sampling session of the frozen weights, or, in flight, of weights
 * that the model's later in-flight saves replace.
 *
 * @param addSampler makes the sampling session and gives its id
 */
export async function saveForSampler(
  context: ServerContext,
  model: LiveModel,
  body: unknown,
  addSampler: (number: number, weights: Snapshot | { inflight: string }) => string,
): Promise<FutureResult> {
  const {
    path: name,
    sampling_session_seq_id: number,
    kind,
    ttl_seconds,
    user_metadata,
  } = readBody(samplerSchema, body);
  if (typeof name === "string") {
    const request = {
      run: model.id,
      kind: "sampler_weights" as const,
      name,
      ttlSeconds: ttl_seconds ?? null,
      overwrite: false,
      userMetadata: user_metadata ?? null,
    };
    const { path, expiresAt } = planCheckpoint(context, request);
    const written = await write(context, model, "sampler");
    context.store.saveCheckpoint(record(context, model, request, expiresAt, written));
    return { kind: "json", body: { type: "save_weights_for_sampler", path } };
  }
  if (typeof number !== "number") throw new UserError("either path or sampling_session_seq_id must be given");
  const { data } = await write(context, model, "sampler");
  const snapshot = { data, adapter: model.record.adapter };
  if (kind === "inflight") model.session.inflight[model.id] = snapshot;
  const id = addSampler(number, kind === "inflight" ? { inflight: model.id } : snapshot);
  return { kind: "json", body: { type: "save_weights_for_sampler", sampling_session_id: id } };
}

export async function saveExternal(context: ServerContext, model: LiveModel, body: unknown): Promise<FutureResult> {
  const { path: name, ttl_seconds, age_encryption_recipients } = readBody(externalSchema, body);
  if (age_encryption_recipients && age_encryption_recipients.length > 0) {
    throw new UserError("age_encryption_recipients: this server does not encrypt exports");
  }
  if (!model.base.engine.capabilities.exports.includes("adapter")) {
    throw new UserError(`the engine "${model.base.engine.capabilities.engine}" exports no adapters`);
  }
  const request = {
    run: model.id,
    kind: "external_weights" as const,
    name,
    ttlSeconds: ttl_seconds ?? null,
    overwrite: false,
    userMetadata: null,
  };
  const { path, expiresAt } = planCheckpoint(context, request);
  const written = await write(context, model, "adapter");
  context.store.saveCheckpoint(record(context, model, request, expiresAt, written));
  return { kind: "json", body: { type: "save_weights_external", path } };
}

/** @throws UserError for a checkpoint that there is not, or that holds no such state */
export function requireLoadable(context: ServerContext, path: string, optimizer: boolean): CheckpointRecord {
  const checkpoint = requireCheckpoint(context, path, ["weights", "external_weights"]);
  if (checkpoint.kind !== "external_weights" || !optimizer) return checkpoint;
  throw new UserError(`${path} holds weights without an optimizer: use create_training_client_from_state("${path}")`);
}

/** Rank and targets come from the checkpoint; a gradient that was added up is dropped. */
export async function loadWeights(context: ServerContext, model: LiveModel, body: unknown): Promise<FutureResult> {
  const { path, optimizer } = readBody(loadSchema, body);
  const checkpoint = requireLoadable(context, path, optimizer);
  if (!model.base.names.includes(checkpoint.baseModel)) {
    throw new UserError(`${path} is of the base model ${checkpoint.baseModel}, this one of ${model.record.baseModel}`);
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
