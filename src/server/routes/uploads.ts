/** Uploads of adapters, as SDK 0.39 does: start, PUT each file to its signed address, finish. */
import { Hono } from "hono";
import type { Service } from "../service.ts";
import { uploadFiles } from "../state/uploads.ts";
import { jsonBody } from "./bodies.ts";
import { requireSigned, signedUrls } from "./signed-urls.ts";

export function uploadRoutes({ context, uploads }: Service): Hono {
  return new Hono()
    .post("/external_weights_upload_start", async (c) => {
      const id = uploads.start(await jsonBody(c));
      return c.json({ upload_id: id, ...signedUrls(c, "PUT", `/uploads/${id}`, uploadFiles, context.now()) });
    })
    .post("/external_weights_upload_finish", async (c) => {
      const { upload_id } = await jsonBody(c);
      return c.json({ tinker_path: await uploads.finish(upload_id) });
    });
}

/** Takes files by their signed addresses, which need no key. */
export function receiveRoutes({ context, uploads }: Service): Hono {
  return new Hono().put("/uploads/:upload", async (c) => {
    const file = requireSigned(c, context.now());
    await uploads.receive(c.req.param("upload"), file, c.req.raw.body);
    return c.body(null, 200);
  });
}
