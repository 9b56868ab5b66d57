/** How a client begins: the server's capabilities, sessions, heartbeats. */
import { Hono } from "hono";
import { z } from "zod";
import { honeCapabilities } from "../../tinker-protocol/handshake.ts";
import { clientName, clientNote, jsonBody, readBody } from "../bodies.ts";
import type { BaseModel } from "../models/base-models.ts";
import type { Service } from "../service.ts";

const finishSchema = z.looseObject({
  reason: z.looseObject({ type: clientName }).nullish(),
  detail: clientNote.nullish(),
});

/** What other clients ignore. */
function describe({ model, capabilities, images, imagesReason }: BaseModel["engine"]) {
  const { directory, architecture, parameters, vocabularySize, eosTokenIds, dtype, device, attention } = model;
  return {
    ...{ directory, architecture, parameters, vocabularySize, eosTokenIds, dtype, device, attention },
    loraTargets: capabilities.loraTargets,
    imagePlaceholder: images?.placeholder,
    imagesReason,
  };
}

export function handshakeRoutes({ sessions, context }: Service): Hono {
  return new Hono()
    .get("/healthz", (c) => {
      const down = context.models.filter(({ supervisor }) => supervisor.lost).map(({ name }) => name);
      if (down.length === 0) return c.json({ status: "ok" });
      const detail = `the engine of ${down.join(", ")} is down and is not started again: restart the server`;
      return c.json({ status: "down", detail }, 503);
    })
    .post("/client/config", (c) =>
      c.json({
        pjwt_auth_enabled: false,
        parallel_fwdbwd_chunks: true,
        proto_compress_fwdbwd: false,
        custom_loss_server_side: false,
        sample_join_sampling_session: true,
      }),
    )
    .post("/client/dynamic_config", (c) => c.json({ refresh_interval_sec: 300, sample_cancel_enabled: true }))
    .post("/create_session", async (c) => {
      const { id } = sessions.create(await jsonBody(c));
      return c.json({ type: "create_session", session_id: id });
    })
    .post("/session_heartbeat", async (c) => {
      sessions.touch((await jsonBody(c)).session_id);
      return c.json({ type: "session_heartbeat" });
    })
    .post("/sessions/:session/finish", async (c) => {
      const { reason, detail } = readBody(finishSchema, await jsonBody(c));
      await sessions.finish(c.req.param("session"), reason?.type ?? "unknown", detail ?? null);
      return c.body(null, 204);
    })
    .post("/telemetry", (c) => c.json({ status: "accepted" }))
    .get("/get_server_capabilities", (c) =>
      c.json({
        supported_models: context.models.map(({ name, engine }) => ({
          model_name: name,
          max_context_length: engine.model.maxLength,
          trainable: engine.capabilities.adapters.includes("lora"),
          sampleable: true,
          hone: describe(engine),
        })),
        hone: honeCapabilities,
      }),
    );
}
