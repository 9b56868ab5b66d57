/** Sampling sessions and requests to sample. */
import { Hono } from "hono";
import { z } from "zod";
import { jsonChunk } from "../../tinker-protocol/chunks.ts";
import { HttpError } from "../http-error.ts";
import { readInput } from "../model-input.ts";
import { findBaseModel } from "../models/base-models.ts";
import { readBody } from "../read-body.ts";
import type { Service } from "../service.ts";
import { answerLines } from "./answer-lines.ts";
import { integerField, jsonBody, jsonText } from "./bodies.ts";

/**
 * Not in Tinker's protocol: many sample requests in one, whose answer has their results. The client repeats those without
 * a result; a repeated request starts nothing.
 */
const manySchema = z.looseObject({
  requests: z
    .array(z.looseObject({ sampling_session_id: z.string(), seq_id: z.int().min(0) }))
    .min(1)
    .max(1024),
});

/** Not in Tinker's protocol: which tokens stand for an image. */
const imageSchema = z.strictObject({ base_model: z.string(), image: jsonChunk });

export function samplingRoutes(service: Service): Hono {
  const { samplers } = service;
  const { futures, pollMs } = service.context;
  return new Hono()
    .post("/create_sampling_session", async (c) =>
      c.json({ type: "create_sampling_session", sampling_session_id: samplers.create(await jsonBody(c)) }),
    )
    .post("/join_sampling_session", async (c) => {
      const { sampling_session_id: id } = await jsonBody(c);
      return c.json({ type: "join_sampling_session", client_counter: samplers.join(id) });
    })
    .get("/samplers/:sampler", (c) => {
      const { sampler } = samplers.require(c.req.param("sampler"));
      const { baseModel, modelPath } = sampler;
      return c.json({ sampler_id: c.req.param("sampler"), base_model: baseModel, model_path: modelPath ?? undefined });
    })
    .post("/asample", async (c) => {
      const { text, body } = await jsonText(c);
      if (body.sampling_session_id === undefined || body.sampling_session_id === null) {
        throw new HttpError(400, "sampling_session_id is missing: create a sampling session first");
      }
      const seq = integerField(text, "seq_id");
      if (seq === undefined)
        throw new HttpError(
          400,
          "seq_id must be a whole number of at least 0: it distinguishes a request from its retry",
        );
      return c.json(service.sample(body, seq));
    })
    .post("/image_tokens", async (c) => {
      const { base_model: name, image } = readBody(imageSchema, await jsonBody(c));
      const { tokens } = await readInput([image], findBaseModel(service.context.models, name), c.req.raw.signal);
      return c.json({ tokens: [...tokens] });
    })
    .post("/asample_many", async (c) => {
      const { requests } = readBody(manySchema, await jsonBody(c));
      const ids = requests.map((body) => String(service.sample(body, String(body.seq_id)).request_id));
      const lines = answerLines(ids, futures, pollMs, c.req.raw.signal);
      return c.body(ReadableStream.from(lines), 200, { "content-type": "application/x-ndjson" });
    });
}
