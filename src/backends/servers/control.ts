/** The routes of a vLLM server beside sampling: its models, its tokenizer, and its LoRA adapters. */
import { z } from "zod";
import { RunError } from "../../errors.ts";
import { ServerFailed } from "./requests/server-failed.ts";
import type { Server } from "./server-group.ts";

const modelList = z.object({
  data: z.array(
    z.object({
      id: z.string(),
      root: z.string().nullish(),
      parent: z.string().nullish(),
      max_model_len: z.int().nullish(),
    }),
  ),
});
const tokenIds = z.object({ tokens: z.array(z.int()) });

export interface ServedModel {
  /** The name that requests give it. */
  name: string;
  /** The longest sequence in tokens; undefined if the server does not report it. */
  maxLength: number | undefined;
  adapters: { name: string; path: string }[];
}

export interface Control {
  /** @throws RunError if the server does not answer or serves no model */
  model(): Promise<ServedModel>;
  /** Without special tokens at its ends. */
  tokenize(model: string, text: string): Promise<number[]>;
  loadAdapter(name: string, path: string): Promise<void>;
  unloadAdapter(name: string): Promise<void>;
}

export function vllmControl({ url, headers }: Pick<Server, "url" | "headers">): Control {
  async function ask(path: string, body?: object): Promise<string> {
    let response: Response;
    let text: string;
    try {
      response = await fetch(url + path, {
        method: body === undefined ? "GET" : "POST",
        headers,
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        signal: AbortSignal.timeout(300_000),
      });
      text = await response.text();
    } catch (error) {
      const { cause, message } = error as Error;
      throw new ServerFailed(
        `the inference server at ${url} does not answer: ${cause instanceof Error ? cause.message : message}`,
        {
          code: "server_unreachable",
          hint: "start it, or correct local.sampler.url",
          cause: error,
        },
      );
    }
    if (response.ok) return text;
    throw new RunError(`the inference server at ${url} answered ${response.status} to ${path}: ${text.slice(0, 500)}`);
  }

  async function read<T>(schema: z.ZodType<T>, path: string, body?: object): Promise<T> {
    const text = await ask(path, body);
    try {
      return schema.parse(JSON.parse(text));
    } catch (error) {
      throw new RunError(`the inference server at ${url} answered ${path} with ${text.slice(0, 200)}`, {
        hint: "local.sampler.url must be the address of a vLLM server",
        cause: error,
      });
    }
  }

  return {
    async model() {
      const { data } = await read(modelList, "/v1/models");
      const base = data.find(({ parent }) => !parent);
      if (base === undefined) throw new RunError(`the inference server at ${url} serves no base model`);
      const adapters = data.filter(({ parent }) => parent).map(({ id, root }) => ({ name: id, path: root ?? "" }));
      return { name: base.id, maxLength: base.max_model_len ?? undefined, adapters };
    },
    async tokenize(model, text) {
      return (await read(tokenIds, "/tokenize", { model, prompt: text, add_special_tokens: false })).tokens;
    },
    async loadAdapter(name, path) {
      await ask("/v1/load_lora_adapter", { lora_name: name, lora_path: path });
    },
    async unloadAdapter(name) {
      await ask("/v1/unload_lora_adapter", { lora_name: name });
    },
  };
}
