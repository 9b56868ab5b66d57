/** Checkpoints: listing, information, deletion, time to live, publishing, copies, downloads of exports. */
import { createReadStream, existsSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { Readable } from "node:stream";
import { Hono } from "hono";
import { z } from "zod";
import { checkpointKinds, formatTinkerPath } from "../../tinker-protocol/tinker-path.ts";
import { HttpError } from "../http-error.ts";
import { modelId } from "../models/live-models.ts";
import { readBody } from "../read-body.ts";
import type { Service } from "../service.ts";
import { allCheckpoints, checkpointsOf, expiry, requireCheckpoint } from "../state/checkpoints.ts";
import { type CheckpointRecord, modelRecord } from "../state/records.ts";
import { jsonBody, pageOf } from "./bodies.ts";
import { requireSigned, signedUrls } from "./signed-urls.ts";

const copySchema = z.looseObject({
  source_path: z.string(),
  session_id: z.string().nullish(),
  model_seq_id: z.int().min(0).nullish(),
  destination_project_id: z.string().nullish(),
  ttl_seconds: z.number().nullish(),
});

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

export function checkpointRoutes({ context, sessions }: Service): Hono {
  const { store, log } = context;
  const copies = new Map<string, string>();

  /** @throws HttpError 404 */
  function find(params: { run: string; kind: string; name: string }): CheckpointRecord {
    const { run, kind, name } = params;
    try {
      return requireCheckpoint(context, `tinker://${run}/${kind}/${name}`);
    } catch (cause) {
      throw new HttpError(404, cause instanceof Error ? cause.message : String(cause), { cause });
    }
  }

  const path = "/training_runs/:run/checkpoints/:kind/:name";
  return new Hono()
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
    .post("/weights_info", async (c) => {
      const { tinker_path } = readBody(z.looseObject({ tinker_path: z.string() }), await jsonBody(c));
      const { baseModel, adapter } = requireCheckpoint(context, tinker_path);
      return c.json({
        base_model: baseModel,
        is_lora: true,
        lora_rank: adapter.rank,
        // Not of the protocol.
        lora_alpha: adapter.alpha,
        train_unembed: adapter.targets.includes("unembed"),
        train_mlp: adapter.targets.includes("mlp"),
        train_attn: adapter.targets.includes("attn"),
        optimizer_config: { type: "adamw" },
      });
    })
    .delete(path, (c) => {
      const checkpoint = find(c.req.param());
      store.deleteCheckpoint(formatTinkerPath(checkpoint));
      log.info(checkpoint.run, `deleted ${checkpoint.kind}/${checkpoint.name}`);
      return c.body(null, 204);
    })
    .on(["POST", "DELETE"], `${path}/publish`, (c) => {
      store.saveCheckpoint({ ...find(c.req.param()), public: c.req.method === "POST" });
      return c.body(null, 204);
    })
    .put(`${path}/ttl`, async (c) => {
      const checkpoint = find(c.req.param());
      const { ttl_seconds } = readBody(z.looseObject({ ttl_seconds: z.number().nullish() }), await jsonBody(c));
      store.saveCheckpoint({ ...checkpoint, expiresAt: expiry(context, ttl_seconds ?? null) });
      return c.body(null, 204);
    })
    .get(`${path}/external_weights_urls`, (c) => {
      const checkpoint = find(c.req.param());
      if (checkpoint.kind !== "external_weights") throw new HttpError(400, "only external weights can be downloaded");
      const files = filesOf(store.folderOf(checkpoint.data));
      return c.json(signedUrls(c, "GET", `/downloads/${checkpoint.data}`, files, context.now()));
    })
    .post("/copy_weights", async (c) => {
      const key = c.req.header("x-idempotency-key");
      const earlier = key === undefined ? undefined : copies.get(key);
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
      if (key !== undefined) copies.set(key, tinkerPath);
      return c.json({ tinker_path: tinkerPath });
    });
}

const filesOf = (folder: string): string[] =>
  readdirSync(folder, { recursive: true, encoding: "utf8" }).filter((file) => statSync(join(folder, file)).isFile());

/** Files of exports, by signed URL. */
export function downloadRoutes({ context }: Service): Hono {
  return new Hono().get("/downloads/:data", (c) => {
    const file = requireSigned(c, context.now());
    const path = join(context.store.folderOf(c.req.param("data")), file);
    if (!existsSync(path)) throw new HttpError(404, "the file no longer exists");
    const body = Readable.toWeb(createReadStream(path)) as ReadableStream;
    return c.body(body, 200, {
      "content-type": "application/octet-stream",
      "content-length": String(statSync(path).size),
    });
  });
}
