/** Models and their training: every long operation is answered with the id of its future. */
import { type Context, Hono } from "hono";
import { z } from "zod";
import { wholeAtLeast } from "../../tinker-protocol/parameters.ts";
import { decodeForwardBackwardRequest } from "../../tinker-protocol/training.ts";
import { jsonBody, protobufBody, readBody } from "../bodies.ts";
import { HttpError } from "../http-error.ts";
import { createModel, createModelFrom } from "../models/create-model.ts";
import type { LiveModel } from "../models/live-models.ts";
import type { FutureResult } from "../queue/futures.ts";
import type { Service } from "../service.ts";
import { loadWeights, saveExternal, saveForSampler, saveWeights } from "../state/saving.ts";
import { forwardBackward } from "../training/forward-backward.ts";
import { dropGradient, optimStep } from "../training/optim-step.ts";

const numbered = z.looseObject({ seq_id: wholeAtLeast(0).nullish() });

export function trainingRoutes(service: Service): Hono {
  const { context, sessions, samplers, operations } = service;
  const { metrics } = context;

  const routes = new Hono()
    .post("/create_model", async (c) => c.json(createModel(service, await jsonBody(c))))
    .post("/get_info", async (c) => {
      const { id, record, base } = sessions.requireModel((await jsonBody(c)).model_id);
      const { architecture: arch, directory } = base.engine.model;
      // A client on this machine loads the tokenizer from the model's own folder.
      const tokenizer_id = directory === "" ? undefined : directory;
      return c.json({
        type: "get_info",
        model_id: id,
        model_name: record.baseModel,
        is_lora: true,
        lora_rank: record.adapter.rank,
        optimizer_config: { type: "adamw" },
        model_data: { arch, model_name: record.baseModel, tokenizer_id },
      });
    })
    // The SDK had this before 0.25.
    .post("/forward", (c) => refuseOldSdk(c))
    .post("/forward_backward", async (c) => {
      if (c.req.header("content-type")?.startsWith("application/json")) refuseOldSdk(c);
      const encoding = c.req.header("content-encoding") ?? "identity";
      if (encoding !== "identity")
        throw new HttpError(415, `Content-Encoding ${encoding} is not supported: see client/config`);
      const bytes = await protobufBody(c);
      const request = decode(bytes);
      const model = sessions.requireModel(request.modelId);
      const operation = {
        kind: request.forwardOnly ? "forward" : "forward_backward",
        details: ` of ${request.datums} datums`,
        work: async () =>
          forwardBackward(model, request.content(), (tokens) => {
            metrics.add("hone_trained_tokens_total", {}, tokens);
            context.use("training", model.session.id, model.base.name, tokens);
          }),
      };
      return c.json(operations.accept(model, request.seqId > 0 ? request.seqId : null, bytes.byteLength, operation));
    });

  function operation(
    kind: string,
    run: (model: LiveModel, body: Record<string, unknown>) => Promise<FutureResult>,
  ): void {
    routes.post(`/${kind}`, async (c) => {
      const body = await jsonBody(c);
      if (kind === "load_weights" && (body.session_id ?? null) !== null) return c.json(createModelFrom(service, body));
      const model = sessions.requireModel(body.model_id);
      const { seq_id: seq = null } = readBody(numbered, body);
      return c.json(operations.accept(model, seq, 0, { kind, work: () => run(model, body) }));
    });
  }
  operation("optim_step", optimStep);
  operation("zero_grad", dropGradient);
  operation("save_weights", (model, body) => saveWeights(context, model, body));
  operation("save_weights_external", (model, body) => saveExternal(context, model, body));
  operation("save_weights_for_sampler", (model, body) =>
    saveForSampler(context, model, body, (number, weights) =>
      samplers.add(model.session, { number, baseModel: model.record.baseModel, weights }),
    ),
  );
  operation("load_weights", (model, body) => loadWeights(context, model, body));
  return routes;
}

function decode(bytes: Uint8Array): ReturnType<typeof decodeForwardBackwardRequest> {
  try {
    return decodeForwardBackwardRequest(bytes);
  } catch (cause) {
    throw new HttpError(400, `the body is not a ForwardBackwardRequest: ${cause}`, { cause });
  }
}

/** The first tested SDK version that sends training data as protobuf. */
const firstSdk = "0.25.0";

function refuseOldSdk(c: Context): never {
  const version = /AsyncTinker\/Python (\S+)/.exec(c.req.header("user-agent") ?? "")?.[1];
  throw new HttpError(
    400,
    `the tinker SDK${version === undefined ? "" : ` ${version}`} of this client is too old: it sends training data as JSON. This server works with ${firstSdk} and later, and is tested with 0.38.0: pip install --upgrade tinker`,
  );
}
