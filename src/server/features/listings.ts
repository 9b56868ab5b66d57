/** Lists of sessions, training runs and checkpoints, page by page. */
import { type Context, Hono } from "hono";
import type { ServerContext } from "../context.ts";
import type { Feature } from "../feature.ts";
import { HttpError } from "../http-error.ts";
import { modelId } from "../models/live-models.ts";
import { samplerId } from "../sampling/samplers.ts";
import type { Service } from "../service.ts";
import { allCheckpoints, checkpointBody, checkpointsOf } from "../state/checkpoints.ts";
import type { ModelRecord } from "../state/records.ts";

export function listings({ context, sessions }: Service): Feature {
  const { store } = context;

  const api = new Hono()
    .get("/checkpoints", (c) => {
      const { limit, offset } = pageOf(c, 100);
      const all = allCheckpoints(context).toReversed();
      const cursor = { offset, limit, total_count: all.length };
      return c.json({ checkpoints: all.slice(offset, offset + limit).map(checkpointBody), cursor });
    })
    .get("/training_runs/:run/checkpoints", (c) => {
      const run = c.req.param("run");
      if (!sessions.findModel(run)) throw new HttpError(404, `there is no training run ${run}`);
      return c.json({ checkpoints: checkpointsOf(context, run).map(checkpointBody) });
    })
    .get("/training_runs", (c) => {
      const { limit, offset } = pageOf(c, 20);
      const project = c.req.query("project_id");
      const all = store
        .newestSessions()
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
      const page = store.newestSessions().slice(offset, offset + limit);
      return c.json({ sessions: page.map(({ id }) => id) });
    })
    .get("/sessions/:session", (c) => {
      const session = sessions.require(c.req.param("session"));
      return c.json({
        training_run_ids: session.models.map(({ number }) => modelId(session.id, number)),
        sampler_ids: session.samplers.map(({ number }) => samplerId(session.id, number)),
        user_metadata: session.userMetadata,
        display_name: session.displayName,
      });
    });
  return { api };
}

function trainingRun(context: ServerContext, id: string, record: ModelRecord) {
  const checkpoints = checkpointsOf(context, id);
  const last = (kind: string) => {
    const found = checkpoints.findLast((checkpoint) => checkpoint.kind === kind);
    return found ? checkpointBody(found) : null;
  };
  return {
    training_run_id: id,
    base_model: record.baseModel,
    // All clients with the key are one owner.
    model_owner: "local",
    is_lora: true,
    lora_rank: record.adapter.rank,
    corrupted: false,
    last_request_time: record.lastRequestAt,
    last_checkpoint: last("weights"),
    last_sampler_checkpoint: last("sampler_weights"),
    user_metadata: record.userMetadata,
  };
}

/** `limit` and `offset` of the query. */
function pageOf(c: Context, usualLimit: number): { limit: number; offset: number } {
  const { limit = String(usualLimit), offset = "0" } = c.req.query();
  for (const [name, text] of Object.entries({ limit, offset })) {
    if (!/^\d+$/.test(text)) throw new HttpError(400, `${name} is "${text}", not a whole number`);
  }
  return { limit: Math.min(Number(limit), 1000), offset: Number(offset) };
}
