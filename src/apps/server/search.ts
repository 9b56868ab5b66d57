/** Searches sessions, and checkpoints as SDK 0.39 does. Frozen (docs/guide/serving.md#frozen-calls). */
import { Hono } from "hono";
import { z } from "zod";
import { checkpointKinds, formatTinkerPath } from "../../backends/tinker/handshake.ts";
import type { Feature } from "./app.ts";
import { jsonBody, readBody } from "./http.ts";
import { modelId, sessionOf } from "./live-models.ts";
import type { Service } from "./service.ts";
import { allCheckpoints, checkpointBody, checkpointsOf } from "./sessions.ts";
import type { CheckpointRecord, SessionRecord } from "./store.ts";

/** A time in the format of the server's records; clients may send other formats. */
const clientTime = z.string().transform((text, context) => {
  const time = new Date(text);
  if (!Number.isNaN(time.getTime())) return time.toISOString();
  context.addIssue({ code: "custom", message: "is not a time; give the cursor as the last page gave it" });
  return z.NEVER;
});

const sessionSearch = z.looseObject({
  session_id: z.string().nullish(),
  project_ids: z.array(z.string()).nullish(),
  user_metadata: z.record(z.string(), z.string()).nullish(),
  display_name: z.string().nullish(),
  statuses: z.array(z.looseObject({ type: z.string(), reasons: z.array(z.string()).nullish() })).nullish(),
  limit: z.int().min(1).max(200).default(50),
  cursor: z.looseObject({ last_created_at: clientTime, last_session_id: z.string() }).nullish(),
});

const checkpointSearch = z.strictObject({
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

export function search({ context, sessions }: Service): Feature {
  const { store } = context;

  function status(session: SessionRecord) {
    if (session.finished) {
      const { reason, detail } = session.finished;
      return { type: "client_finished", reason: { type: reason }, detail };
    }
    return sessions.isOver(session) ? null : { type: "active" };
  }

  function summary(session: SessionRecord) {
    const checkpoints = session.models.flatMap(({ number }) => checkpointsOf(context, modelId(session.id, number)));
    return {
      session_id: session.id,
      created_at: session.createdAt,
      // All clients with the key are one owner.
      owner: "local",
      project_id: session.projectId ?? "",
      status: status(session),
      checkpoints_count: checkpoints.length,
      display_name: session.displayName,
      user_metadata: session.userMetadata,
      checkpoint_storage_bytes: checkpoints.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0),
    };
  }

  function matchesSession(session: SessionRecord, query: z.output<typeof sessionSearch>) {
    const { session_id, display_name, project_ids, user_metadata, statuses } = query;
    const words = display_name?.toLowerCase().split(/\s+/).filter(Boolean);
    const name = session.displayName?.toLowerCase() ?? "";
    const named = (session_id && session.id === session_id) || words?.every((word) => name.includes(word));
    const now = status(session);
    const ofStatus = ({ type, reasons }: { type: string; reasons?: string[] | null | undefined }) =>
      now?.type === type && (!reasons || reasons.includes(session.finished?.reason ?? ""));
    return (
      (named || (!session_id && !words)) &&
      (!project_ids || project_ids.includes(session.projectId ?? "")) &&
      Object.entries(user_metadata ?? {}).every(([key, value]) => session.userMetadata?.[key] === value) &&
      (!statuses || statuses.some(ofStatus))
    );
  }

  const projectOf = ({ run }: CheckpointRecord) => store.sessions.get(sessionOf(run))?.projectId ?? "";

  function matchesCheckpoint(checkpoint: CheckpointRecord, query: z.output<typeof checkpointSearch>): boolean {
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

  const api = new Hono()
    .post("/sessions/search", async (c) => {
      const query = readBody(sessionSearch, await jsonBody(c));
      const { cursor, limit } = query;
      const after = (session: SessionRecord) =>
        !cursor || [session.createdAt, session.id].join() < [cursor.last_created_at, cursor.last_session_id].join();
      const found = store.newestSessions().filter((session) => after(session) && matchesSession(session, query));
      const page = found.slice(0, limit);
      const last = page.at(-1);
      const more = found.length > limit && last;
      return c.json({
        sessions: page.map(summary),
        next_cursor: more ? { last_created_at: last.createdAt, last_session_id: last.id } : null,
      });
    })
    .post("/checkpoints/search", async (c) => {
      const query = readBody(checkpointSearch, await jsonBody(c));
      const { cursor, limit } = query;
      const from = cursor ? [new Date(cursor.last_created_at).toISOString(), cursor.last_checkpoint_uuid].join() : null;
      const found = allCheckpoints(context)
        .filter((checkpoint) => matchesCheckpoint(checkpoint, query) && (from === null || placeOf(checkpoint) < from))
        .sort((left, right) => (placeOf(left) < placeOf(right) ? 1 : -1));
      const last = found.length > limit ? found[limit - 1] : undefined;
      return c.json({
        checkpoints: found.slice(0, limit).map(checkpointBody),
        next_cursor: last ? { last_created_at: last.createdAt, last_checkpoint_uuid: formatTinkerPath(last) } : null,
      });
    });
  return { api };
}
