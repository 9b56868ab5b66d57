/**
 * Uploads of adapters, as SDK 0.39 does: start, PUT each file to its signed address, finish. The files have the format of
 * exports, and become a checkpoint when all have arrived. Frozen (docs/guide/serving.md#frozen-calls).
 */
import { randomUUID } from "node:crypto";
import { createWriteStream, existsSync, mkdirSync, readFileSync } from "node:fs";
import { rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { Hono } from "hono";
import { z } from "zod";
import { formatTinkerPath, loraConfig } from "../../backends/tinker/handshake.ts";
import { UserError } from "../../base/errors.ts";
import type { Feature } from "./app.ts";
import { findBaseModel } from "./base-models.ts";
import type { ServerContext } from "./context.ts";
import { HttpError, jsonBody, readBody } from "./http.ts";
import { modelId } from "./live-models.ts";
import { requireSigned, signedUrls } from "./routes.ts";
import { adapterOf, type Service } from "./service.ts";
import type { Sessions } from "./sessions.ts";
import { checkpointRecord, type LoraAdapter, modelRecord } from "./store.ts";

const uploadFiles = ["adapter_config.json", "adapter_model.safetensors"] as const;

const startSchema = z.looseObject({
  base_model: z.string(),
  lora_config: loraConfig,
  destination_project_id: z.string().nullish(),
});
const configSchema = z.looseObject({ r: z.int(), lora_alpha: z.number().gt(0) });

/** Larger than any adapter; a signed address does not accept more. */
const maxBytes = 16 * 2 ** 30;
/** What is not finished by then is dropped. */
const expiryMs = 2 * 3_600_000;

interface Upload {
  baseModel: string;
  adapter: LoraAdapter;
  project: string | null;
  data: string;
  begun: number;
  /** Set once it is finished: finishing again gives the same. */
  path?: Promise<string>;
}

export function uploads({ context, sessions }: Service): Feature {
  const held = createUploads(context, sessions);
  const api = new Hono()
    .post("/external_weights_upload_start", async (c) => {
      const id = held.start(await jsonBody(c));
      return c.json({ upload_id: id, ...signedUrls(c, "PUT", `/uploads/${id}`, uploadFiles, context.now()) });
    })
    .post("/external_weights_upload_finish", async (c) => {
      const { upload_id } = await jsonBody(c);
      return c.json({ tinker_path: await held.finish(upload_id) });
    });
  // Signed addresses need no key.
  const open = new Hono().put("/uploads/:upload", async (c) => {
    const file = requireSigned(c, context.now());
    await held.receive(c.req.param("upload"), file, c.req.raw.body);
    return c.body(null, 200);
  });
  return { api, open, sweep: held.sweep };
}

function createUploads(context: ServerContext, sessions: Sessions) {
  const { store, log } = context;
  const uploads = new Map<string, Upload>();

  function require(id: unknown): Upload {
    const upload = typeof id === "string" ? uploads.get(id) : undefined;
    if (upload) return upload;
    throw new HttpError(404, `there is no upload ${JSON.stringify(id)}: it was never started, or it has expired`);
  }

  async function adopt({ baseModel, adapter, project, data }: Upload): Promise<string> {
    const folder = store.folderOf(data);
    const missing = uploadFiles.filter((file) => !existsSync(join(folder, file)));
    if (missing.length > 0)
      throw new UserError(`the upload is missing ${missing.join(" and ")}: PUT every file to its address first`);
    const { r, lora_alpha: alpha } = readBody(configSchema, readConfig(folder));
    if (r !== adapter.rank)
      throw new UserError(`adapter_config.json has rank ${r}, but lora_config has rank ${adapter.rank}`);
    const base = findBaseModel(context.models, baseModel);
    const own = { ...adapter, alpha };
    await base.scheduler.train(`upload ${data}`, async () => {
      const learner = await (await base.supervisor.ready()).createLearner({ adapter: own });
      try {
        await learner.loadState(folder, { optimizer: false });
      } finally {
        await learner.close();
      }
    });
    const session = sessions.create({ display_name: "uploaded weights", project_id: project });
    const createdAt = context.now().toISOString();
    session.models.push(
      modelRecord.parse({
        number: 0,
        adapter: own,
        baseModel,
        createdAt,
        lastRequestAt: createdAt,
        untrainable: true,
      }),
    );
    store.saveSession(session);
    const checkpoint = checkpointRecord.parse({
      run: modelId(session.id, 0),
      kind: "external_weights",
      name: "uploaded",
      createdAt,
      sizeBytes: store.sizeOf(data),
      baseModel,
      adapter: own,
      data,
    });
    store.saveCheckpoint(checkpoint);
    log.info(checkpoint.run, `uploaded an adapter of rank ${r}`);
    return formatTinkerPath(checkpoint);
  }

  return {
    /** @throws UserError for a model that is not served, or a rank that is not possible */
    start(body: unknown): string {
      const { base_model, lora_config, destination_project_id } = readBody(startSchema, body);
      const { engine } = findBaseModel(context.models, base_model);
      const adapter = adapterOf(lora_config, engine.capabilities);
      const id = randomUUID();
      const { data, folder } = store.newData();
      mkdirSync(folder);
      const begun = context.now().getTime();
      uploads.set(id, { baseModel: base_model, adapter, project: destination_project_id ?? null, data, begun });
      return id;
    },
    /** @throws HttpError 404, 413 */
    async receive(id: string, file: string, body: ReadableStream | null): Promise<void> {
      const { data, path } = require(id);
      if (path) throw new HttpError(400, "the upload is finished");
      const target = join(store.folderOf(data), file);
      const partial = `${target}.partial`;
      let bytes = 0;
      const limited = async function* (chunks: AsyncIterable<Uint8Array>) {
        for await (const chunk of chunks) {
          bytes += chunk.byteLength;
          if (bytes > maxBytes) throw new HttpError(413, `${file} is longer than ${maxBytes} bytes`);
          yield chunk;
        }
      };
      try {
        const source = body === null ? Readable.from([]) : Readable.fromWeb(body as never);
        await pipeline(source, limited, createWriteStream(partial));
        await rename(partial, target);
      } finally {
        await rm(partial, { force: true });
      }
    },
    /** Gives the checkpoint's path. @throws UserError when the files are not an adapter of the model */
    async finish(id: unknown): Promise<string> {
      const upload = require(id);
      upload.path ??= adopt(upload);
      try {
        return await upload.path;
      } catch (error) {
        // The client may put other files in place.
        delete upload.path;
        throw error;
      }
    },
    sweep(): void {
      const now = context.now().getTime();
      for (const [id, { begun, data, path }] of uploads) {
        if (now - begun < expiryMs) continue;
        uploads.delete(id);
        if (!path) store.discard(data);
      }
    },
  };
}

function readConfig(folder: string): unknown {
  try {
    return JSON.parse(readFileSync(join(folder, "adapter_config.json"), "utf8"));
  } catch (cause) {
    throw new UserError(`adapter_config.json is not valid JSON: ${cause instanceof Error ? cause.message : cause}`);
  }
}
