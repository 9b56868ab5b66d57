/** What the server remembers across a restart: sessions with their models and samplers, and checkpoints. Plain data. */
import { createHash, randomUUID } from "node:crypto";
import { existsSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { loraTargets } from "../../backends/engine.ts";
import { formatTinkerPath } from "../../backends/tinker/handshake.ts";
import { RunError } from "../../base/errors.ts";
import { makeFolder, makePrivate, removeLeftovers, writeWhole } from "../../base/files.ts";
import { lockFolder } from "../../base/folder-lock.ts";

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

// The server's folder: `sessions/*.json`, `checkpoints/*.json` and `data/*`, one folder of weights each. A record is
// replaced as a whole, and weights are written before the record that names them, so after a
// kill at any instant, everything that the records name is complete.

/** A name for a file of any text. */
const fileOf = (text: string) => `${createHash("sha256").update(text).digest("hex").slice(0, 40)}.json`;

export type Store = ReturnType<typeof openStore>;

/** @throws UserError when another server uses the folder; RunError when a record cannot be read */
export function openStore(root: string) {
  const folders = {
    sessions: join(root, "sessions"),
    checkpoints: join(root, "checkpoints"),
    data: join(root, "data"),
  };
  for (const folder of Object.values(folders)) makeFolder(folder, 0o700);
  makePrivate(root, 0o700);
  const unlock = lockFolder(root);
  // A record that a killed server was writing, next to the one that it would replace.
  for (const folder of [folders.sessions, folders.checkpoints]) removeLeftovers(folder, () => true);
  const sessions = new Map(readAll(folders.sessions, sessionRecord).map((session) => [session.id, session]));
  const checkpoints = new Map(
    readAll(folders.checkpoints, checkpointRecord).map((checkpoint) => [formatTinkerPath(checkpoint), checkpoint]),
  );
  const folderOf = (data: string) => join(folders.data, data);
  const write = (folder: string, key: string, record: unknown) =>
    writeWhole(join(folder, fileOf(key)), [`${JSON.stringify(record)}\n`], 0o600);
  // Folders that are being written have no record so far.
  const unrecorded = new Set<string>();

  function named(): Set<string> {
    const used = new Set([...checkpoints.values()].map(({ data }) => data));
    for (const session of sessions.values()) {
      for (const { state } of session.models) if (state) used.add(state.data);
      for (const { weights } of session.samplers) {
        if (typeof weights === "object" && "data" in weights) used.add(weights.data);
      }
      for (const { data } of Object.values(session.inflight)) used.add(data);
    }
    for (const data of used) unrecorded.delete(data);
    return used;
  }

  return {
    root,
    sessions,
    /** By tinker path. */
    checkpoints,
    newestSessions: (): SessionRecord[] =>
      [...sessions.values()].sort(
        (left, right) => right.createdAt.localeCompare(left.createdAt) || right.id.localeCompare(left.id),
      ),
    saveSession(session: SessionRecord): void {
      sessions.set(session.id, session);
      write(folders.sessions, session.id, session);
    },
    saveCheckpoint(checkpoint: CheckpointRecord): void {
      const path = formatTinkerPath(checkpoint);
      write(folders.checkpoints, path, checkpoint);
      checkpoints.set(path, checkpoint);
    },
    deleteCheckpoint(path: string): void {
      rmSync(join(folders.checkpoints, fileOf(path)), { force: true });
      checkpoints.delete(path);
    },
    /** The name of a folder that does not exist so far, and its path. */
    newData(): { data: string; folder: string } {
      const data = randomUUID();
      unrecorded.add(data);
      return { data, folder: folderOf(data) };
    },
    /** Nothing will be written there after all. */
    discard: (data: string) => void unrecorded.delete(data),
    folderOf,
    sizeOf: (data: string) => folderSize(folderOf(data)),
    /** Deletes the folders that are neither in a record nor in `alsoUsed`. */
    async collectGarbage(alsoUsed: ReadonlySet<string> = new Set()): Promise<void> {
      const used = named();
      const unused = readdirSync(folders.data).filter(
        // A folder under way is `.{name}.{owner}.partial`, one that is complete `{name}`.
        (entry) => ![used, unrecorded, alsoUsed].some((set) => set.has(entry) || set.has(entry.split(".")[1] ?? "")),
      );
      for (const entry of unused) await rm(join(folders.data, entry), { recursive: true, force: true });
    },
    close: unlock,
  };
}

function readAll<S extends z.ZodType>(folder: string, schema: S): z.output<S>[] {
  return readdirSync(folder)
    .filter((file) => file.endsWith(".json"))
    .map((file) => {
      const path = join(folder, file);
      try {
        return schema.parse(JSON.parse(readFileSync(path, "utf8")));
      } catch (cause) {
        throw new RunError(`${path} is not a record that this server can read: ${cause}`, {
          hint: "Another version of Hone may have written it. Move it away, or choose another --state folder.",
          cause,
        });
      }
    });
}

function folderSize(folder: string): number {
  if (!existsSync(folder)) return 0;
  const stats = readdirSync(folder, { recursive: true, encoding: "utf8" }).map((file) => statSync(join(folder, file)));
  return stats.reduce((total, entry) => total + (entry.isFile() ? entry.size : 0), 0);
}
