/**
 * The calls of `hone serve` that a training loop does not make: publishing, copying and listing checkpoints, projects, and the features
 * with a file of their own. Except vLLM's routes they are frozen (docs/guide/serving.md#frozen-calls). A feature is a leaf: only
 * `hone serve` imports this list, so a run's service in its own process has none of them.
 */
import { type Context, Hono } from "hono";
import { z } from "zod";
import { formatTinkerPath } from "../../backends/tinker/handshake.ts";
import type { Feature, OpenFeature } from "./app.ts";
import type { ServerContext } from "./context.ts";
import { clientName, HttpError, jsonBody, readBody } from "./http.ts";
import { modelId } from "./live-models.ts";
import { search } from "./search.ts";
import { type Service, samplerId } from "./service.ts";
import {
  allCheckpoints,
  checkpointAddress,
  checkpointAt,
  checkpointBody,
  checkpointsOf,
  expiry,
  requireCheckpoint,
} from "./sessions.ts";
import { type ModelRecord, modelRecord } from "./store.ts";
import { uploads } from "./uploads.ts";
import { usage } from "./usage.ts";
import { vllm } from "./vllm-routes.ts";

// The features of `hone serve`, a line for each.

export const features: readonly OpenFeature[] = [
  listings,
  search,
  projects,
  checkpointSettings,
  copies,
  uploads,
  usage,
  vllm,
  refusedCalls,
];

/** Lists of sessions, training runs and checkpoints, page by page. */
function listings({ context, sessions }: Service): Feature {
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

// Moves a session to a project, a name by which sessions and usage are listed.

const projectSchema = z.looseObject({ project_id: clientName.min(1) });

function projects({ context, sessions }: Service): Feature {
  const api = new Hono().put("/sessions/:session/project", async (c) => {
    const session = sessions.require(c.req.param("session"));
    session.projectId = readBody(projectSchema, await jsonBody(c)).project_id;
    context.store.saveSession(session);
    return c.body(null, 204);
  });
  return { api };
}

// Publishes checkpoints, and changes how long they are kept.

const ttlSchema = z.looseObject({ ttl_seconds: z.number().nullish() });

function checkpointSettings({ context }: Service): Feature {
  const { store } = context;
  const api = new Hono()
    .on(["POST", "DELETE"], `${checkpointAddress}/publish`, (c) => {
      store.saveCheckpoint({ ...checkpointAt(context, c.req.param()), public: c.req.method === "POST" });
      return c.body(null, 204);
    })
    .put(`${checkpointAddress}/ttl`, async (c) => {
      const checkpoint = checkpointAt(context, c.req.param());
      const { ttl_seconds } = readBody(ttlSchema, await jsonBody(c));
      store.saveCheckpoint({ ...checkpoint, expiresAt: expiry(context, ttl_seconds ?? null) });
      return c.body(null, 204);
    });
  return { api };
}

// Copies checkpoints into another session or project. A copy shares the weights of its source.

const copySchema = z.looseObject({
  source_path: z.string(),
  session_id: z.string().nullish(),
  model_seq_id: z.int().min(0).nullish(),
  destination_project_id: z.string().nullish(),
  ttl_seconds: z.number().nullish(),
});

function copies({ context, sessions }: Service): Feature {
  const { store } = context;
  /** The paths of copies by the keys of their requests, which clients repeat. */
  const made = new Map<string, string>();

  const api = new Hono().post("/copy_weights", async (c) => {
    const key = c.req.header("x-idempotency-key");
    const earlier = key === undefined ? undefined : made.get(key);
    if (earlier !== undefined) return c.json({ tinker_path: earlier });
    const request = readBody(copySchema, await jsonBody(c));
    const source = requireCheckpoint(context, request.source_path);
    const expiresAt = expiry(context, request.ttl_seconds ?? null);
    const session = request.session_id
      ? sessions.touch(request.session_id)
      : sessions.create({
          display_name: `copy of ${request.source_path}`,
          project_id: request.destination_project_id,
        });
    const number = request.model_seq_id ?? 0;
    if (session.models.some((model) => model.number === number)) {
      throw new HttpError(400, `the session has a model ${number} already; choose another model_seq_id`);
    }
    const time = context.now().toISOString();
    const { adapter, baseModel } = source;
    const created = { createdAt: time, lastRequestAt: time };
    session.models.push(modelRecord.parse({ ...created, number, adapter, baseModel, untrainable: true }));
    store.saveSession(session);
    const copy = { ...source, run: modelId(session.id, number), createdAt: time, expiresAt, public: false };
    store.saveCheckpoint(copy);
    const tinkerPath = formatTinkerPath(copy);
    if (key !== undefined) made.set(key, tinkerPath);
    return c.json({ tinker_path: tinkerPath });
  });
  return { api };
}

// Calls of the official SDK that this server does not support, each refused with a sentence. Listed in docs/guide/serving.md.

const refused: Readonly<Record<string, string>> = {
  "GET /audit":
    "this server keeps no audit log; its own log has a line for each operation, and GET /metrics the counters",
  "GET /sessions/:session/trace_export":
    "this server exports no session traces; GET /metrics has the time of operations by kind",
  "POST /auth/token": "this server exchanges no keys for tokens: use the API key that it was started with",
  "GET /auth/apikey/me": "this server has no accounts: its API key gives access to everything on it",
  "DELETE /auth/apikey/me":
    "this server has one API key, which is set when it starts: restart it with another --api-key",
  "POST /create_custom_loss":
    "this server runs no custom losses; the SDK runs them on the client, as client/config says",
};

function refusedCalls(): Feature {
  const api = new Hono();
  for (const [call, why] of Object.entries(refused)) {
    const [method = "", path = ""] = call.split(" ");
    api.on(method, path, () => {
      // Not 501: clients retry every status from 500 for minutes.
      throw new HttpError(400, why);
    });
  }
  return { api };
}
