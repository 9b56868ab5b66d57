/** What the server remembers across a restart: sessions with their models and samplers, and checkpoints. Plain data. */
import { z } from "zod";
import { loraTargets } from "../../backends/engine.ts";

const metadata = z.record(z.string(), z.unknown()).nullable().default(null);
const targets = z.enum(loraTargets);

/** LoRA as an engine takes it, with every value set: the same spec creates the same fresh model. */
const adapter = z.strictObject({
  kind: z.literal("lora"),
  rank: z.int().min(1),
  alpha: z.number(),
  targets: z.array(targets),
  seed: z.int(),
});

/** Frozen weights: a folder of the store, and what made them. */
const snapshot = z.strictObject({ data: z.string(), adapter });

export const modelRecord = z.strictObject({
  /** `model_seq_id` */
  number: z.int().min(0),
  /** As the client named it. */
  baseModel: z.string(),
  adapter,
  userMetadata: metadata,
  createdAt: z.string(),
  lastRequestAt: z.string(),
  /** The state of the model before it became `dirty`; null is a fresh one. `data` names a folder of the store. */
  state: z.strictObject({ data: z.string(), optimizer: z.boolean() }).nullable().default(null),
  /** The sequence id that comes next, unless the model is `dirty`. */
  nextSeq: z.int().min(0).default(1),
  /** The weights have changed since: after a restart they are lost. */
  dirty: z.boolean().default(false),
  /** The model has a gradient that no step has used so far. A restart loses it, even if the weights are saved. */
  unstepped: z.boolean().default(false),
  /** The last training checkpoint, which the message about lost weights names. */
  lastSaved: z.string().nullable().default(null),
  /** Holds copied checkpoints only. */
  untrainable: z.boolean().default(false),
});

export const samplerRecord = z.strictObject({
  /** `sampling_session_seq_id` */
  number: z.int().min(0),
  baseModel: z.string(),
  /** The checkpoint it was made from, where it has a name. */
  modelPath: z.string().nullable().default(null),
  /** The weights: a folder of the store, the base model as it is, or the newest in-flight weights of a model. */
  weights: z.union([
    snapshot,
    z.strictObject({ inflight: z.string() }),
    z.literal("base"),
    /** They were dropped because they were unused for long, or because their session has ended. */
    z.literal("gone"),
  ]),
  clients: z.int().min(0).default(0),
});

const finished = z.strictObject({ reason: z.string(), detail: z.string().nullable(), at: z.string() });

export const sessionRecord = z.strictObject({
  id: z.string(),
  createdAt: z.string(),
  tags: z.array(z.string()).default([]),
  userMetadata: metadata,
  displayName: z.string().nullable().default(null),
  projectId: z.string().nullable().default(null),
  finished: finished.nullable().default(null),
  models: z.array(modelRecord).default([]),
  samplers: z.array(samplerRecord).default([]),
  /** The newest weights that a model shares with its in-flight samplers, by model id. */
  inflight: z.record(z.string(), snapshot).default({}),
});

export const checkpointRecord = z.strictObject({
  run: z.string(),
  kind: z.enum(["weights", "sampler_weights", "external_weights"]),
  name: z.string(),
  createdAt: z.string(),
  expiresAt: z.string().nullable().default(null),
  public: z.boolean().default(false),
  sizeBytes: z.int(),
  userMetadata: metadata,
  baseModel: z.string(),
  adapter,
  /** A folder of the store. */
  data: z.string(),
});

export type LoraAdapter = z.output<typeof adapter>;
export type Snapshot = z.output<typeof snapshot>;
export type ModelRecord = z.output<typeof modelRecord>;
export type SamplerRecord = z.output<typeof samplerRecord>;
export type SessionRecord = z.output<typeof sessionRecord>;
export type CheckpointRecord = z.output<typeof checkpointRecord>;
