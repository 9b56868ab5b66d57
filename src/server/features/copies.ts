/** Copies checkpoints into another session or project. A copy shares the weights of its source. */
import { Hono } from "hono";
import { z } from "zod";
import { formatTinkerPath } from "../../tinker-protocol/tinker-path.ts";
import { jsonBody, readBody } from "../bodies.ts";
import type { Feature } from "../feature.ts";
import { HttpError } from "../http-error.ts";
import { modelId } from "../models/live-models.ts";
import type { Service } from "../service.ts";
import { expiry, requireCheckpoint } from "../state/checkpoints.ts";
import { modelRecord } from "../state/records.ts";

const copySchema = z.looseObject({
  source_path: z.string(),
  session_id: z.string().nullish(),
  model_seq_id: z.int().min(0).nullish(),
  destination_project_id: z.string().nullish(),
  ttl_seconds: z.number().nullish(),
});

export function copies({ context, sessions }: Service): Feature {
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
