/** The routes that clients of vLLM use: token ids in, token ids and log-probabilities out. */
import { randomUUID } from "node:crypto";
import { Hono } from "hono";
import { z } from "zod";
import { openTokenizer, type Tokenizer } from "../../chat/tokens/tokenizer.ts";
import { answerTo } from "../http-error.ts";
import { findBaseModel } from "../models/base-models.ts";
import { readBody } from "../read-body.ts";
import { type ReplyHead, toEvent, toLastEvent, toReply } from "../sampling/generate-reply.ts";
import { readGenerateCall } from "../sampling/generate-request.ts";
import type { Service } from "../service.ts";
import { jsonBody } from "./bodies.ts";

const abortSchema = z.looseObject({ request_ids: z.array(z.string()) });

const tokenizeSchema = z.looseObject({
  prompt: z.string(),
  model: z.string().nullish(),
  add_special_tokens: z.boolean().default(true),
});

export function generateRoutes({ context, generator, adapters }: Service): Hono {
  const tokenizers = new Map<string, Tokenizer>();
  function tokenizerOf(name: string | undefined): Tokenizer {
    const isOther = name === undefined || adapters.find(name) !== undefined;
    const { directory } = (isOther ? context.models[0]! : findBaseModel(context.models, name)).engine.model;
    const tokenizer = tokenizers.get(directory) ?? openTokenizer(directory);
    tokenizers.set(directory, tokenizer);
    return tokenizer;
  }
  return (
    new Hono()
      .post("/inference/v1/generate", async (c) => {
        const call = readGenerateCall(await jsonBody(c));
        const { model, request, run } = generator.accept(call);
        const head: ReplyHead = {
          request_id: call.id ?? randomUUID(),
          created: Math.floor(context.now().getTime() / 1000),
          model,
        };
        const { signal } = c.req.raw;
        if (!call.stream) return c.json(toReply(head, request.prompt, await run(signal), call.logprobs));
        const events = new TransformStream<string, Uint8Array>({
          transform: (text, out) => out.enqueue(new TextEncoder().encode(text)),
        });
        const writer = events.writable.getWriter();
        const write = (event: object | string) =>
          writer.write(`data: ${typeof event === "string" ? event : JSON.stringify(event)}\n\n`).catch(() => {});
        let streamed = 0;
        // The engine does not stream alternatives: they come with the last event.
        const onToken = request.topLogprobs
          ? undefined
          : (_: number, token: number, logprob: number) => {
              streamed++;
              void write(toEvent(head, token, logprob, call.logprobs));
            };
        void run(signal, onToken)
          .then(
            async (sample) => {
              await write(toLastEvent(head, sample, streamed, call.logprobs));
              await write("[DONE]");
            },
            (error: unknown) => {
              const { status, detail } = answerTo(error);
              if (status === 500) context.log.warn("", `a stream of /inference/v1/generate failed: ${error}`);
              return write({ error: { message: detail, code: status } });
            },
          )
          .finally(() => writer.close().catch(() => {}));
        return c.body(events.readable, 200, { "content-type": "text/event-stream" });
      })
      // Clients ask with GET whether the route exists.
      .get("/inference/v1/generate", (c) => c.json({ detail: "use POST" }, 405, { allow: "POST" }))
      .post("/inference/v1/abort_requests", async (c) => {
        generator.abort(readBody(abortSchema, await jsonBody(c)).request_ids);
        return c.body(null, 200);
      })
      .post("/v1/load_lora_adapter", async (c) => {
        adapters.load(await jsonBody(c));
        return c.text("Success");
      })
      .post("/v1/unload_lora_adapter", async (c) => {
        adapters.unload(await jsonBody(c));
        return c.text("Success");
      })
      .post("/tokenize", async (c) => {
        const { prompt, model, add_special_tokens: addSpecial } = readBody(tokenizeSchema, await jsonBody(c));
        const tokens = [...tokenizerOf(model ?? undefined).encode(prompt, { addSpecial })];
        return c.json({ tokens, count: tokens.length });
      })
      // Base models do not change.
      .get("/weight_info", (c) => c.json({ weight_version: "0" }))
      .get("/health", (c) => c.body(null, context.models.some(({ keeper }) => keeper.lost) ? 503 : 200))
      .get("/v1/models", (c) => {
        const data = context.models.map(({ name, engine: { model } }) => ({
          id: name,
          object: "model",
          owned_by: "hone",
          root: model.directory,
          parent: null,
          max_model_len: model.maxLength,
        }));
        const [{ id: parent, max_model_len } = { id: "", max_model_len: 0 }] = data;
        const loaded = adapters.all.map(([id, { path: root }]) => ({
          id,
          object: "model",
          owned_by: "hone",
          root,
          parent,
          max_model_len,
        }));
        return c.json({ object: "list", data: [...data, ...loaded] });
      })
  );
}
