/** Publishes checkpoints, and changes how long they are kept. */
import { Hono } from "hono";
import { z } from "zod";
import { jsonBody, readBody } from "../bodies.ts";
import type { Feature } from "../feature.ts";
import type { Service } from "../service.ts";
import { checkpointAddress, checkpointAt, expiry } from "../state/checkpoints.ts";

const ttlSchema = z.looseObject({ ttl_seconds: z.number().nullish() });

export function checkpointSettings({ context }: Service): Feature {
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
