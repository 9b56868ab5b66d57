/** The routes of an inference server beside sampling: its models, its tokenizer, its weights. */
import { z } from "zod";
import { RunError } from "../../../errors.ts";
import type { WeightGroup } from "../../engine.ts";
import type { Ask } from "./ask.ts";

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
  /** An adapter that the server does not have counts as unloaded. */
  unloadAdapter(name: string): Promise<void>;
  /**
   * Replaces all weights with those of a model folder. Running requests wait meanwhile and continue with the new weights;
   * what they have cached is computed again.
   *
   * @param version the label of these weights, which replies carry
   */
  loadWeights(path: string, version: string): Promise<void>;
  /** Makes the server's processes join the group. Absent if this kind of server cannot. */
  joinGroup?(group: WeightGroup): Promise<void>;
  /**
   * As `loadWeights`, with weights that the group's learner sends meanwhile. If that fails, the server stays paused: it has
   * parts of two versions.
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
    }),
  ),
});
const tokenIds = z.object({ tokens: z.array(z.int()) });

/** What both kinds of servers answer alike. */
export function commonControl({ url, ask, read }: Ask, unloadPath: string) {
  async function model(): Promise<ServedModel> {
    const { data } = await read(modelList, "/v1/models");
    const base = data.find(({ parent }) => !parent);
    if (base === undefined) throw new RunError(`the inference server at ${url} serves no base model`);
    const adapters = data.filter(({ parent }) => parent).map(({ id, root }) => ({ name: id, path: root ?? "" }));
    return { name: base.id, maxLength: base.max_model_len ?? undefined, adapters };
  }
  return {
    model,
    async tokenize(name: string, text: string): Promise<number[]> {
      return (await read(tokenIds, "/tokenize", { model: name, prompt: text, add_special_tokens: false })).tokens;
    },
    async unloadAdapter(name: string): Promise<void> {
      try {
        await ask(unloadPath, { lora_name: name });
      } catch (error) {
        // A server that was restarted has none.
        if ((await model()).adapters.some((adapter) => adapter.name === name)) throw error;
      }
    },
  };
}
