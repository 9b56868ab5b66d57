/** Sampling sessions and requests to sample. */
import { Hono } from "hono";
import { HttpError } from "../http-error.ts";
import type { Service } from "../service.ts";
import { integerField, jsonBody, parseObject } from "./bodies.ts";

export function samplingRoutes(service: Service): Hono {
  const { samplers } = service;
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
      const path = sampler.modelPath === null ? {} : { model_path: sampler.modelPath };
      return c.json({ sampler_id: c.req.param("sampler"), base_model: sampler.baseModel, ...path });
    })
    .post("/asample", async (c) => {
      const text = await c.req.text();
      const body = parseObject(text);
      if (body.sampling_session_id === undefined || body.sampling_session_id === null) {
        throw new HttpError(400, "sampling_session_id is missing: create a sampling session first");
      }
      const seq = integerField(text, "seq_id");
      if (seq === undefined) throw new HttpError(400, "seq_id is missing: it tells a request from its own retry");
      return c.json(service.sample(body, seq));
    });
}
