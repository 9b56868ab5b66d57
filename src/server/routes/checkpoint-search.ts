/** Searching checkpoints, as SDK 0.39 does. */
import { Hono } from "hono";
import { z } from "zod";
import { checkpointKinds, formatTinkerPath } from "../../tinker-protocol/tinker-path.ts";
import type { ServerContext } from "../context.ts";
import { readBody } from "../read-body.ts";
import { allCheckpoints } from "../state/checkpoints.ts";
import type { CheckpointRecord } from "../state/records.ts";
import { jsonBody } from "./bodies.ts";
import { checkpointBody } from "./checkpoints.ts";

const searchSchema = z.strictObject({
  project_ids: z.array(z.string()).nullish(),
  user_metadata: z.record(z.string(), z.string()).default({}),
  checkpoint_type: z.enum(["training", "sampler", "external"]).nullish(),
  // The server has one owner, so every owner means the same.
  owner: z.looseObject({ type: z.string() }).nullish(),
  base_models: z.array(z.string()).nullish(),
  limit: z.int().min(1).max(200).default(50),
  cursor: z
    .strictObject({ last_created_at: z.iso.datetime({ offset: true }), last_checkpoint_uuid: z.string() })
    .nullish(),
});

export function checkpointSearchRoutes(context: ServerContext): Hono {
  const projectOf = ({ run }: CheckpointRecord) =>
    context.store.sessions.get(run.split(":train:")[0]!)?.projectId ?? "";

  function matches(checkpoint: CheckpointRecord, query: z.output<typeof searchSchema>): boolean {
    const { project_ids, user_metadata, checkpoint_type, base_models } = query;
    return (
      (!project_ids || project_ids.includes(projectOf(checkpoint))) &&
      Object.entries(user_metadata).every(([key, value]) => checkpoint.userMetadata?.[key] === value) &&
      (!checkpoint_type || checkpointKinds[checkpoint.kind] === checkpoint_type) &&
      (!base_models || base_models.includes(checkpoint.baseModel))
    );
  }

  // Those of the same instant are in the order of their paths.
  const placeOf = (checkpoint: CheckpointRecord) => [checkpoint.createdAt, formatTinkerPath(checkpoint)].join();

  return new Hono().post("/checkpoints/search", async (c) => {
    const query = readBody(searchSchema, await jsonBody(c));
    const { cursor, limit } = query;
    const from = cursor ? [new Date(cursor.last_created_at).toISOString(), cursor.last_checkpoint_uuid].join() : null;
    const found = allCheckpoints(context)
      .filter((checkpoint) => matches(checkpoint, query) && (from === null || placeOf(checkpoint) < from))
      .sort((left, right) => (placeOf(left) < placeOf(right) ? 1 : -1));
    const last = found.length > limit ? found[limit - 1] : undefined;
    return c.json({
      checkpoints: found.slice(0, limit).map(checkpointBody),
      next_cursor: last ? { last_created_at: last.createdAt, last_checkpoint_uuid: formatTinkerPath(last) } : null,
    });
  });
}
