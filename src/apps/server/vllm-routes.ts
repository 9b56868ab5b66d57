/**
 * vLLM's routes over the server's engines: token ids in, token ids and log-probabilities out, one sequence per request, without a session;
 * and LoRA adapters that are loaded at run time.
 */
import { randomUUID } from "node:crypto";
import { setMaxListeners } from "node:events";
import { closeSync, copyFileSync, existsSync, mkdirSync, openSync, readFileSync, readSync } from "node:fs";
import { join } from "node:path";
import { Hono } from "hono";
import { z } from "zod";
import type { Policy, Sample, SampleOptions, SampleRequest } from "../../backends/engine.ts";
import { EngineDied } from "../../backends/engine-parts.ts";
import { isTinkerPath, loraConfig } from "../../backends/tinker/handshake.ts";
import { UserError } from "../../base/errors.ts";
import { openTokenizer, type Tokenizer } from "../../chat/tokenizer.ts";
import type { Feature } from "./app.ts";
import { type BaseModel, engineDown, findBaseModel, type SnapshotUse } from "./base-models.ts";
import type { ServerContext } from "./context.ts";
import { answerTo, HttpError, jsonBody, readBody } from "./http.ts";
import { adapterOf, type Service } from "./service.ts";
import { requireCheckpoint } from "./sessions.ts";
import type { Snapshot } from "./store.ts";
import { type GenerateCall, type ReplyHead, readGenerateCall, toEvent, toLastEvent, toReply } from "./vllm-messages.ts";

const abortSchema = z.looseObject({ request_ids: z.array(z.string()) });

const tokenizeSchema = z.looseObject({
  prompt: z.string(),
  model: z.string().nullish(),
  add_special_tokens: z.boolean().default(true),
});

export function vllm(service: Service): Feature {
  const { context } = service;
  const adapters = createServedAdapters(context);
  const generator = createGenerator(service, adapters);
  const tokenizers = new Map<string, Tokenizer>();
  function tokenizerOf(name: string | undefined): Tokenizer {
    const isOther = name === undefined || adapters.find(name) !== undefined;
    const { directory } = (isOther ? context.models[0]! : findBaseModel(context.models, name)).engine.model;
    const tokenizer = tokenizers.get(directory) ?? openTokenizer(directory);
    tokenizers.set(directory, tokenizer);
    return tokenizer;
  }
  const root = new Hono()
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
    });
  // A health check does not need a key.
  const open = new Hono().get("/health", (c) =>
    c.body(null, context.models.some(({ supervisor }) => supervisor.lost) ? 503 : 200),
  );
  return { root, open };
}

/** The clients of this route take turns with sampling sessions as one. */
const owner = "generate";

interface Generation {
  /** The model's name. */
  model: string;
  request: SampleRequest;
  /** Ends early, with what was sampled, when the signal or `abort` says so. */
  run(signal: AbortSignal, onToken?: SampleOptions["onToken"]): Promise<Sample>;
}

function createGenerator({ context, samplers }: Service, adapters: ServedAdapters) {
  const { models, metrics } = context;
  const running = new Map<string, Set<AbortController>>();

  type Use = <T>(as: SnapshotUse, work: (policy: Policy) => Promise<T>) => Promise<T>;

  function modelOf(name: string): { base: BaseModel; use: Use } {
    const loaded = adapters.find(name);
    if (loaded !== undefined) {
      const base = models[0]!;
      return { base, use: (as, work) => samplers.useSnapshot(base, loaded, as, work) };
    }
    if (!isTinkerPath(name)) {
      const base = findBaseModel(models, name);
      return { base, use: async (_as, work) => work(await base.base.get()) };
    }
    const { baseModel, data, adapter } = requireCheckpoint(context, name);
    const base = findBaseModel(models, baseModel);
    return { base, use: (as, work) => samplers.useSnapshot(base, { data, adapter }, as, work) };
  }

  async function sampleOne(
    base: BaseModel,
    { sampler }: Policy,
    request: SampleRequest,
    signal: AbortSignal,
    onToken: SampleOptions["onToken"],
  ): Promise<Sample> {
    if (onToken === undefined) return (await base.gatherer.sample(sampler, owner, [request], signal))[0]!;
    for await (const sample of sampler.sample([{ ...request, signal }], { onToken })) return sample;
    throw new Error("the engine ended the call without answering it");
  }

  /** The sampler does not compute it. */
  async function topOfPrompt(
    { learner }: Policy,
    { prompt: tokens, topPromptLogprobs: count = 0 }: SampleRequest,
  ): Promise<Pick<Sample, "topPromptLogprobs">> {
    const trained = new Uint8Array(tokens.length - 1).fill(1);
    const found = await learner.mostLikely!(tokens.length > 1 ? [{ tokens, trained }] : [], count);
    const row = (at: number) => ({
      tokens: found.tokens.slice(at * count, (at + 1) * count),
      logprobs: found.logprobs.slice(at * count, (at + 1) * count),
    });
    const none = { tokens: new Int32Array(0), logprobs: new Float32Array(0) };
    return { topPromptLogprobs: [none, ...Array.from(trained, (_, at) => row(at))] };
  }

  return {
    /** @throws UserError for a request that the model cannot answer */
    accept(call: GenerateCall): Generation {
      const name = call.model ?? models[0]!.name;
      const { base, use } = modelOf(name);
      const request = call.request(base.engine);
      return {
        model: name,
        request,
        async run(signal, onToken) {
          const leave = base.scheduler.enter(1);
          if (!leave) {
            metrics.add("hone_refused_total", { queue: "sampling" });
            throw new HttpError(429, "too many sequences are waiting to be sampled; try again");
          }
          const stop = new AbortController();
          const { id = "" } = call;
          const sameId = running.get(id) ?? new Set();
          running.set(id, sameId.add(stop));
          const either = AbortSignal.any([signal, stop.signal]);
          setMaxListeners(0, either);
          try {
            const asks = request.topPromptLogprobs !== undefined;
            const sample = await use(asks ? "scores" : "samples", async (policy) => {
              const sampled = await base.scheduler.sample(owner, 1, () =>
                sampleOne(base, policy, request, either, onToken),
              );
              if (!asks) return sampled;
              return { ...sampled, ...(await base.scheduler.train(owner, () => topOfPrompt(policy, request))) };
            });
            metrics.add("hone_prompt_tokens_total", {}, request.prompt.length);
            metrics.add("hone_sampled_tokens_total", {}, sample.tokens.length);
            context.use("sampling_prefill", null, base.name, request.prompt.length);
            context.use("sampling_sample", null, base.name, sample.tokens.length);
            return sample;
          } catch (error) {
            if (!(error instanceof EngineDied)) throw error;
            if (base.supervisor.lost) throw engineDown(base, error);
            throw new HttpError(503, `the engine of ${base.name} died and is restarted; send the request again`);
          } finally {
            leave();
            sameId.delete(stop);
            if (sameId.size === 0) running.delete(id);
          }
        },
      };
    },
    abort(ids: readonly string[]): void {
      // vLLM's own ids have the prefix.
      for (const id of ids) for (const stop of running.get(id.replace(/^generate-tokens-/, "")) ?? []) stop.abort();
    },
  };
}

// LoRA adapters in PEFT's format that clients load at run time, as with vLLM, and name as a model.

const files = ["adapter_config.json", "adapter_model.safetensors"] as const;
const configSchema = z.looseObject({ r: z.int().min(1), lora_alpha: z.number().gt(0) });
const loadSchema = z.looseObject({ lora_name: z.string().min(1).max(512), lora_path: z.string().min(1) });
const unloadSchema = z.looseObject({ lora_name: z.string() });

interface ServedAdapter extends Snapshot {
  /** Where it was loaded from. */
  path: string;
}

type ServedAdapters = ReturnType<typeof createServedAdapters>;

/** The adapters are of the first base model, and are lost when the server ends. */
function createServedAdapters({ models, store }: ServerContext) {
  const adapters = new Map<string, ServedAdapter>();
  return {
    get all(): readonly (readonly [name: string, adapter: ServedAdapter])[] {
      return [...adapters];
    },
    find: (name: string): ServedAdapter | undefined => adapters.get(name),
    /** @throws UserError for a folder that has no adapter, or a name that is taken */
    load(body: unknown): void {
      const { lora_name: name, lora_path: path } = readBody(loadSchema, body);
      const { names, engine } = models[0]!;
      if (adapters.has(name) || names.includes(name)) throw new UserError(`the name ${name} is already loaded`);
      const missing = files.filter((file) => !existsSync(join(path, file)));
      if (missing.length > 0) throw new UserError(`${path} has no ${missing.join(" and no ")}`);
      const { r: rank, lora_alpha: alpha } = readBody(
        configSchema,
        JSON.parse(readFileSync(join(path, files[0]), "utf8")),
      );
      const trained = trainedBy(join(path, files[1]));
      const adapter = adapterOf(readBody(loraConfig, { rank, alpha, seed: 0, ...trained }), engine.capabilities);
      const { data, folder } = store.newData();
      mkdirSync(folder);
      // The client may delete its folder.
      for (const file of files) copyFileSync(join(path, file), join(folder, file));
      adapters.set(name, { data, adapter, path });
    },
    unload(body: unknown): void {
      const { lora_name: name } = readBody(unloadSchema, body);
      const adapter = adapters.get(name);
      if (adapter === undefined) throw new HttpError(404, `no adapter ${name} is loaded`);
      adapters.delete(name);
      store.discard(adapter.data);
    },
  };
}

/** Which layers a safetensors file adapts, by the names of its tensors. */
function trainedBy(path: string) {
  const file = openSync(path, "r");
  try {
    const length = Buffer.alloc(8);
    readSync(file, length, 0, 8, 0);
    const header = Buffer.alloc(Number(length.readBigUInt64LE()));
    readSync(file, header, 0, header.length, 8);
    const names = Object.keys(JSON.parse(header.toString()) as object).filter((name) => name !== "__metadata__");
    const isUnembed = (name: string) => /\b(lm_head|embed_out)\b/.test(name);
    const isAttention = (name: string) => /attn|attention/.test(name);
    return {
      train_unembed: names.some(isUnembed),
      train_attn: names.some(isAttention),
      train_mlp: names.some((name) => !isUnembed(name) && !isAttention(name)),
    };
  } finally {
    closeSync(file);
  }
}
