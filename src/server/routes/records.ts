/** Training runs and sessions, as clients list them. */
import { Hono } from "hono";
import { z } from "zod";
import { clientName, clientTime } from "../client-names.ts";
import type { ServerContext } from "../context.ts";
import { HttpError } from "../http-error.ts";
import { modelId } from "../models/live-models.ts";
import { readBody } from "../read-body.ts";
import { samplerId } from "../sampling/samplers.ts";
import type { Service } from "../service.ts";
import { checkpointsOf } from "../state/checkpoints.ts";
import type { ModelRecord, SessionRecord } from "../state/records.ts";
import { jsonBody, pageOf } from "./bodies.ts";
import { checkpointBody } from "./checkpoints.ts";

/** All clients with the key are one owner. */
const owner = "local";

function trainingRun(context: ServerContext, id: string, record: ModelRecord) {
  const checkpoints = checkpointsOf(context, id);
  const last = (kind: string) => {
    const found = checkpoints.findLast((checkpoint) => checkpoint.kind === kind);
    return found ? checkpointBody(found) : null;
  };
  return {
    training_run_id: id,
    base_model: record.baseModel,
    model_owner: owner,
    is_lora: true,
    lora_rank: record.adapter.rank,
    corrupted: false,
    last_request_time: record.lastRequestAt,
    last_checkpoint: last("weights"),
    last_sampler_checkpoint: last("sampler_weights"),
    user_metadata: record.userMetadata,
  };
}

const searchSchema = z.looseObject({
  session_id: z.string().nullish(),
  project_ids: z.array(z.string()).nullish(),
  user_metadata: z.record(z.string(), z.string()).nullish(),
  display_name: z.string().nullish(),
  statuses: z.array(z.looseObject({ type: z.string(), reasons: z.array(z.string()).nullish() })).nullish(),
  limit: z.int().min(1).max(200).default(50),
  cursor: z.looseObject({ last_created_at: clientTime, last_session_id: z.string() }).nullish(),
});

export function recordRoutes({ context, sessions }: Service): Hono {
  const { store } = context;
  const newestFirst = () =>
    [...store.sessions.values()].sort(
      (left, right) => right.createdAt.localeCompare(left.createdAt) || right.id.localeCompare(left.id),
    );

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
      owner,
      project_id: session.projectId ?? "",
      status: status(session),
      checkpoints_count: checkpoints.length,
      display_name: session.displayName,
      user_metadata: session.userMetadata,
      checkpoint_storage_bytes: checkpoints.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0),
    };
  }

  function matches(session: SessionRecord, query: z.output<typeof searchSchema>) {
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

  return new Hono()
    .get("/training_runs", (c) => {
      const { limit, offset } = pageOf(c, 20);
      const project = c.req.query("project_id");
      const all = newestFirst()
        .filter(({ projectId }) => project === undefined || projectId === project)
        .flatMap(({ id, models }) => models.toReversed().map((model) => ({ id: modelId(id, model.number), model })));
      const page = all.slice(offset, offset + limit);
      return c.json({
        training_runs: page.map(({ id, model }) => trainingRun(context, id, model)),
        cursor: { offset, limit, total_count: all.length },
      });
    })
    .get("/training_runs/:run", (c) => {
      const run = c.req.param("run");
      const model = sessions.findModel(run);
      if (!model) throw new HttpError(404, `there is no training run ${run}`);
      return c.json(trainingRun(context, run, model.record));
    })
    .get("/sessions", (c) => {
      const { limit, offset } = pageOf(c, 20);
      const page = newestFirst().slice(offset, offset + limit);
      return c.json({ sessions: page.map(({ id }) => id) });
    })
    .post("/sessions/search", async (c) => {
      const query = readBody(searchSchema, await jsonBody(c));
      const { cursor, limit } = query;
      const after = (session: SessionRecord) =>
        !cursor || [session.createdAt, session.id].join() < [cursor.last_created_at, cursor.last_session_id].join();
      const found = newestFirst().filter((session) => after(session) && matches(session, query));
      const page = found.slice(0, limit);
      const last = page.at(-1);
      const more = found.length > limit && last;
      return c.json({
        sessions: page.map(summary),
        next_cursor: more ? { last_created_at: last.createdAt, last_session_id: last.id } : null,
      });
    })
    .get("/sessions/:session", (c) => {
      const session = sessions.require(c.req.param("session"));
      return c.json({
        training_run_ids: session.models.map(({ number }) => modelId(session.id, number)),
        sampler_ids: session.samplers.map(({ number }) => samplerId(session.id, number)),
        user_metadata: session.userMetadata,
        display_name: session.displayName,
      });
    })
    .put("/sessions/:session/project", async (c) => {
      const session = sessions.require(c.req.param("session"));
      session.projectId = readBody(z.looseObject({ project_id: clientName.min(1) }), await jsonBody(c)).project_id;
      store.saveSession(session);
      return c.body(null, 204);
    });
}
