/** Finds and expires checkpoints. A checkpoint is a record that names a folder of weights. */
import { messageOf, UserError } from "../../errors.ts";
import {
  checkpointKinds,
  formatTinkerPath,
  type PathKind,
  parseTinkerPath,
} from "../../tinker-protocol/tinker-path.ts";
import type { ServerContext } from "../context.ts";
import { HttpError } from "../http-error.ts";
import type { CheckpointRecord } from "./records.ts";

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
export function findCheckpoint(context: ServerContext, path: string): CheckpointRecord | undefined {
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
