/** Models and their training: every long operation is answered with the id of its future. */
import { type Context, Hono } from "hono";
import { HttpError } from "../http-error.ts";
import type { Service } from "../service.ts";
import { jsonBody, protobufBody } from "./bodies.ts";

/** The first tested SDK version that sends training data as protobuf. */
const firstSdk = "0.25.0";

function refuseOldSdk(c: Context): never {
  const version = /AsyncTinker\/Python (\S+)/.exec(c.req.header("user-agent") ?? "")?.[1];
  throw new HttpError(
    400,
    `the tinker SDK${version === undefined ? "" : ` ${version}`} of this client is too old: it sends training data as JSON. This server works with ${firstSdk} and later, and is tested with 0.38.0: pip install --upgrade tinker`,
  );
}

export function trainingRoutes(service: Service): Hono {
  const routes = new Hono()
    .post("/create_model", async (c) => c.json(service.createModel(await jsonBody(c))))
    .post("/get_info", async (c) => {
      const { id, record, base } = service.sessions.requireModel((await jsonBody(c)).model_id);
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
      return c.json(service.forwardBackward(await protobufBody(c)));
    });
  for (const { kind, accept } of service.training) {
    routes.post(`/${kind}`, async (c) => {
      const body = await jsonBody(c);
      const creates = kind === "load_weights" && (body.session_id ?? null) !== null;
      return c.json(creates ? service.createModelFrom(body) : accept(body));
    });
  }
  return routes;
}
