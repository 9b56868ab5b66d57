/** Checkpoints: information, deletion, downloads of exports. */
import { createReadStream, existsSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { Readable } from "node:stream";
import { Hono } from "hono";
import { z } from "zod";
import { formatTinkerPath } from "../../tinker-protocol/tinker-path.ts";
import { jsonBody, readBody } from "../bodies.ts";
import { HttpError } from "../http-error.ts";
import type { Service } from "../service.ts";
import { checkpointAddress, checkpointAt, requireCheckpoint } from "../state/checkpoints.ts";
import { requireSigned, signedUrls } from "./signed-urls.ts";

export function checkpointRoutes({ context }: Service): Hono {
  const { store, log } = context;
  return new Hono()
    .post("/weights_info", async (c) => {
      const { tinker_path } = readBody(z.looseObject({ tinker_path: z.string() }), await jsonBody(c));
      const { baseModel, adapter } = requireCheckpoint(context, tinker_path);
      return c.json({
        base_model: baseModel,
        is_lora: true,
        lora_rank: adapter.rank,
        // With `adapterAlpha`.
        lora_alpha: adapter.alpha,
        train_unembed: adapter.targets.includes("unembed"),
        train_mlp: adapter.targets.includes("mlp"),
        train_attn: adapter.targets.includes("attn"),
        optimizer_config: { type: "adamw" },
      });
    })
    .delete(checkpointAddress, (c) => {
      const checkpoint = checkpointAt(context, c.req.param());
      store.deleteCheckpoint(formatTinkerPath(checkpoint));
      log.info(checkpoint.run, `deleted ${checkpoint.kind}/${checkpoint.name}`);
      return c.body(null, 204);
    })
    .get(`${checkpointAddress}/external_weights_urls`, (c) => {
      const checkpoint = checkpointAt(context, c.req.param());
      if (checkpoint.kind !== "external_weights") throw new HttpError(400, "only external weights can be downloaded");
      const files = filesOf(store.folderOf(checkpoint.data));
      return c.json(signedUrls(c, "GET", `/downloads/${checkpoint.data}`, files, context.now()));
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
