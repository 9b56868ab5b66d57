/** Control routes of an inference server: its models, its tokenizer, its weights, its memory. */
import { fetch, type Response } from "undici";
import { z } from "zod";
import { RunError, UserError } from "../../base/errors.ts";
import { reasonOf } from "../../base/http.ts";
import type { WeightGroup } from "../engine.ts";
import { type Server, type ServerAddress, ServerFailed, type ServerGroup, samplerSettings } from "./group.ts";

// The control routes of an inference server: its models, its tokenizer and its weights.

export interface ServedModel {
  /** The name of the model in requests. */
  name: string;
  /** The longest sequence in tokens; undefined if the server does not report it. */
  maxLength: number | undefined;
  /** The folder or hub id that it was loaded from, if the server reports it. */
  root: string | undefined;
  /** The program, e.g. "vllm" or "sglang", if the server reports it. */
  owner: string | undefined;
  adapters: { name: string; path: string }[];
}

export interface Control {
  /** @throws RunError if the server does not answer or serves no model */
  model(): Promise<ServedModel>;
  /** Encodes without adding special tokens. */
  tokenize(model: string, text: string): Promise<number[]>;
  loadAdapter(name: string, path: string): Promise<void>;
  /** Does nothing if the server does not have the adapter. */
  unloadAdapter(name: string): Promise<void>;
  /**
   * Replaces all weights with those of a model folder. Running requests wait meanwhile and continue with the new weights;
   * their cache is computed again.
   *
   * @param version the label of these weights, which replies contain
   */
  loadWeights(path: string, version: string): Promise<void>;
  /** Makes the server's processes join the group. Absent if this kind of server does not support it. */
  joinGroup?(group: WeightGroup): Promise<void>;
  /**
   * Like `loadWeights`, but the group's learner sends the weights. If this fails, the server stays paused, because it may
   * have parts of two versions.
   */
  receiveWeights?(group: WeightGroup, version: string): Promise<void>;
  /** The label of the weights. */
  weightVersion(): Promise<string>;
  /** Frees the memory of weights and caches. No request may be running. */
  sleep(): Promise<void>;
  /** Undoes `sleep`. */
  wake(): Promise<void>;
}

const modelList = z.object({
  data: z.array(
    z.object({
      id: z.string(),
      root: z.string().nullish(),
      parent: z.string().nullish(),
      max_model_len: z.int().nullish(),
      owned_by: z.string().nullish(),
    }),
  ),
});
const tokenIds = z.object({ tokens: z.array(z.int()) });

/** Text whose tokens differ between nearly all tokenizers. */
export const tokenizerProbe =
  "Hello  world!\n\tWhat is 12345 + 678.90? ÄÖ ñ 你好 🙂 def f(x):\n    return x**2 # <b>don't</b>";

/** All models of a server, also its adapters. */
export async function readModels({ read }: Ask) {
  const { data } = await read(modelList, "/v1/models");
  const longest = data.find(({ parent }) => !parent)?.max_model_len;
  return data.map(({ id: name, parent, max_model_len: own, owned_by: owner }) => ({
    name,
    isBase: !parent,
    maxLength: own ?? longest ?? undefined,
    owner: owner ?? undefined,
  }));
}

export async function readModel({ url, read }: Ask): Promise<ServedModel> {
  const { data } = await read(modelList, "/v1/models");
  const base = data.find(({ parent }) => !parent);
  if (base === undefined) throw new RunError(`the inference server at ${url} does not serve a base model`);
  const adapters = data.filter(({ parent }) => parent).map(({ id, root }) => ({ name: id, path: root ?? "" }));
  const { id, root, max_model_len, owned_by } = base;
  return {
    name: id,
    maxLength: max_model_len ?? undefined,
    root: root ?? undefined,
    owner: owned_by ?? undefined,
    adapters,
  };
}

/** Encodes without adding special tokens. */
export async function tokenize({ read }: Ask, model: string, text: string): Promise<number[]> {
  return (await read(tokenIds, "/tokenize", { model, prompt: text, add_special_tokens: false })).tokens;
}

/** The routes that are equal in both kinds of servers. */
function commonControl(asking: Ask, unloadPath: string) {
  const model = () => readModel(asking);
  return {
    model,
    tokenize: (name: string, text: string) => tokenize(asking, name, text),
    async unloadAdapter(name: string): Promise<void> {
      try {
        await asking.ask(unloadPath, { lora_name: name });
      } catch (error) {
        // A restarted server has no adapters.
        if ((await model()).adapters.some((adapter) => adapter.name === name)) throw error;
      }
    },
  };
}

// Combines the control routes of several servers. A server that is back after a failure gets the weights that it lacks.

export function allServers(group: ServerGroup, controlOf: (server: Server) => Control): Control {
  const controls = new Map(
    group.servers.map((server) => [server, { control: controlOf(server), has: new Set<string>() }]),
  );
  let served: string | undefined;
  /** Adapters that every server should have, by name. */
  const wanted = new Map<string, string>();
  let weights: { path: string; version: string } | undefined;
  const each = <T>(ask: (control: Control) => Promise<T>) => group.each((server) => ask(controls.get(server)!.control));

  async function readModel(server: Server): Promise<ServedModel> {
    const { control, has } = controls.get(server)!;
    const model = await control.model();
    has.clear();
    for (const { name } of model.adapters) has.add(name);
    return model;
  }

  async function load(server: Server, name: string, path: string): Promise<void> {
    const { control, has } = controls.get(server)!;
    if (has.has(name)) return;
    await control.loadAdapter(name, path);
    has.add(name);
  }

  async function unload(server: Server, name: string): Promise<void> {
    const { control, has } = controls.get(server)!;
    if (has.delete(name)) await control.unloadAdapter(name);
  }

  async function restore(server: Server): Promise<boolean> {
    const { name } = await readModel(server);
    if (served !== undefined && name !== served) throw new Error(`it serves ${name} instead of ${served}`);
    const { control, has } = controls.get(server)!;
    let lacked = false;
    // More adapters may be published meanwhile.
    for (;;) {
      const missing = [...wanted].find(([name]) => !has.has(name));
      if (weights && (await control.weightVersion()) !== weights.version) {
        await control.loadWeights(weights.path, weights.version);
      } else if (missing) await load(server, ...missing);
      else return lacked;
      lacked = true;
    }
  }

  const restoring = new Map<Server, Promise<boolean>>();
  group.restore = (server) => {
    const running = restoring.get(server) ?? restore(server).finally(() => restoring.delete(server));
    restoring.set(server, running);
    return running;
  };

  return {
    async model() {
      const models = await group.each(readModel);
      const [first, ...others] = models;
      const other = others.find(({ name }) => name !== first!.name);
      if (other) {
        throw new UserError(`the inference servers serve different models: ${first!.name} and ${other.name}`, {
          hint: "serve the same model everywhere, with the same --served-model-name",
        });
      }
      served = first!.name;
      return joinModels(models);
    },
    async tokenize(model, text) {
      const [first, ...others] = await each((control) => control.tokenize(model, text));
      if (others.every((tokens) => tokens.join() === first!.join())) return first!;
      throw new UserError("the inference servers have different tokenizers", {
        hint: "serve the same model everywhere",
      });
    },
    async loadAdapter(name, path) {
      wanted.set(name, path);
      await group.each((server) => load(server, name, path));
    },
    async unloadAdapter(name) {
      wanted.delete(name);
      await group.each((server) => unload(server, name));
    },
    async loadWeights(path, version) {
      weights = { path, version };
      await each((control) => control.loadWeights(path, version));
    },
    async joinGroup(weightGroup) {
      await each(async (control) => control.joinGroup?.(weightGroup));
    },
    async receiveWeights(weightGroup, version) {
      await each(async (control) => control.receiveWeights?.(weightGroup, version));
    },
    weightVersion: async () => [...new Set(await each((control) => control.weightVersion()))].join(", "),
    async sleep() {
      await each((control) => control.sleep());
    },
    async wake() {
      await each((control) => control.wake());
    },
  };
}

function joinModels(models: readonly ServedModel[]): ServedModel {
  const lengths = models.flatMap(({ maxLength }) => maxLength ?? []);
  const adapters = new Map(models.flatMap((model) => model.adapters).map((adapter) => [adapter.name, adapter]));
  return {
    ...models[0]!,
    maxLength: lengths.length > 0 ? Math.min(...lengths) : undefined,
    adapters: [...adapters.values()],
  };
}

// Requests to the control routes of an inference server.

export interface Ask {
  url: string;
  /**
   * Sends a GET request, or with a body a POST request.
   * @returns the answer's text
   * @throws RunError when the server does not answer, or answers with an error
   */
  ask(path: string, body?: object): Promise<string>;
  /** @throws RunError also when the answer does not match the schema */
  read<T>(schema: z.ZodType<T>, path: string, body?: object): Promise<T>;
}

export type AskedServer = Pick<ServerAddress, "url" | "headers"> & Partial<Pick<Server, "pool" | "settings">>;

/** Loading the weights of a large model takes minutes. */
const limitMs = 900_000;

/** @param kind the name of the server in messages */
export function openAsk(server: AskedServer, kind: string): Ask {
  const { url, headers, settings = samplerSettings } = server;

  async function ask(path: string, body?: object): Promise<string> {
    let response: Response;
    let text: string;
    try {
      response = await fetch(url + path, {
        method: body === undefined ? "GET" : "POST",
        headers,
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        ...(server.pool === undefined ? {} : { dispatcher: server.pool }),
        signal: AbortSignal.timeout(limitMs),
      });
      text = await response.text();
    } catch (error) {
      throw new ServerFailed(`the inference server at ${url} does not answer: ${reasonOf(error)}`, {
        code: "server_unreachable",
        hint: `start it, or correct ${settings.url}`,
        cause: error,
      });
    }
    if (response.ok) return text;
    throw new RunError(`the inference server at ${url} answered ${response.status} to ${path}: ${text.slice(0, 500)}`);
  }

  return {
    url,
    ask,
    async read(schema, path, body) {
      const text = await ask(path, body);
      try {
        return schema.parse(JSON.parse(text));
      } catch (error) {
        throw new RunError(`the inference server at ${url} answered ${path} with ${text.slice(0, 200)}`, {
          hint: `${settings.url} must be the address of a ${kind} server`,
          cause: error,
        });
      }
    },
  };
}

// SGLang's control routes.

const outcome = z.object({ success: z.boolean(), message: z.string().nullish(), error_message: z.string().nullish() });
const modelInfo = z.object({ weight_version: z.string() });

export function sglangControl(server: AskedServer): Control {
  const asking = openAsk(server, "SGLang");
  const { url, ask, read } = asking;

  async function succeed(path: string, body: object): Promise<void> {
    const { success, message, error_message: reason } = await read(outcome, path, body);
    if (!success) throw new RunError(`the inference server at ${url} refused ${path}: ${reason ?? message}`);
  }

  return {
    ...commonControl(asking, "/unload_lora_adapter"),
    loadAdapter: (name, path) => succeed("/load_lora_adapter", { lora_name: name, lora_path: path }),
    async loadWeights(path, version) {
      // The other modes abort running requests, or keep their cache.
      await ask("/pause_generation", { mode: "retract" });
      try {
        await succeed("/update_weights_from_disk", { model_path: path, weight_version: version, flush_cache: true });
      } finally {
        await ask("/continue_generation", {});
      }
    },
    weightVersion: async () => (await read(modelInfo, "/model_info")).weight_version,
    async sleep() {
      await ask("/release_memory_occupation", {});
    },
    async wake() {
      await ask("/resume_memory_occupation", {});
    },
  };
}

// vLLM's control routes. The routes for weights need VLLM_SERVER_DEV_MODE=1.

const reset = z.object({ success: z.boolean() });
const weightInfo = z.object({ weight_version: z.string() });

export function vllmControl(server: AskedServer): Control {
  const asking = openAsk(server, "vLLM");
  const { url, ask, read } = asking;

  async function resetCache(): Promise<void> {
    // Without the parameter, the reset fails while a running request has cache entries.
    const { success } = await read(reset, "/reset_prefix_cache?reset_running_requests=true", {});
    if (!success) throw new RunError(`the inference server at ${url} could not reset its prefix cache`);
  }

  return {
    ...commonControl(asking, "/v1/unload_lora_adapter"),
    async loadAdapter(name, path) {
      await ask("/v1/load_lora_adapter", { lora_name: name, lora_path: path });
    },
    async loadWeights(path, version) {
      await ask("/pause?mode=keep", {});
      try {
        await ask("/collective_rpc", { method: "reload_weights", kwargs: { weights_path: path } });
        await resetCache();
        await ask("/update_weight_version", { new_version: version });
      } finally {
        await ask("/resume", {});
      }
    },
    async joinGroup({ id, size }) {
      const init = { nccl_unique_id_b64: id, rank_offset: 1, world_size: size, packed: false };
      await ask("/init_weight_transfer_engine", { init_info: init });
    },
    async receiveWeights({ weights: { names, dtypes, shapes }, send }, version) {
      await ask("/pause?mode=keep", {});
      await ask("/start_weight_update", {});
      await Promise.all([ask("/update_weights", { update_info: { names, dtype_names: dtypes, shapes } }), send()]);
      await ask("/finish_weight_update", { weight_version: version });
      await resetCache();
      await ask("/resume", {});
    },
    weightVersion: async () => (await read(weightInfo, "/weight_info")).weight_version,
    async sleep() {
      await ask("/sleep?level=1", {});
    },
    async wake() {
      await ask("/wake_up", {});
    },
  };
}
