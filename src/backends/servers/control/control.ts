/** The control routes of an inference server: its models, its tokenizer and its weights. */
import { z } from "zod";
import { RunError } from "../../../errors.ts";
import type { WeightGroup } from "../../engine.ts";
import type { Ask } from "./ask.ts";

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
export function commonControl(asking: Ask, unloadPath: string) {
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
