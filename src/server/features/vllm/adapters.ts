/** LoRA adapters in PEFT's format that clients load at run time, as with vLLM, and name as a model. */
import { closeSync, copyFileSync, existsSync, mkdirSync, openSync, readFileSync, readSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { UserError } from "../../../errors.ts";
import { loraConfig } from "../../../tinker-protocol/parameters.ts";
import { readBody } from "../../bodies.ts";
import type { ServerContext } from "../../context.ts";
import { HttpError } from "../../http-error.ts";
import { adapterOf } from "../../models/create-model.ts";
import type { Snapshot } from "../../state/records.ts";

const files = ["adapter_config.json", "adapter_model.safetensors"] as const;
const configSchema = z.looseObject({ r: z.int().min(1), lora_alpha: z.number().gt(0) });
const loadSchema = z.looseObject({ lora_name: z.string().min(1).max(512), lora_path: z.string().min(1) });
const unloadSchema = z.looseObject({ lora_name: z.string() });

export interface ServedAdapter extends Snapshot {
  /** Where it was loaded from. */
  path: string;
}

export type ServedAdapters = ReturnType<typeof createServedAdapters>;

/** The adapters are of the first base model, and are lost when the server ends. */
export function createServedAdapters({ models, store }: ServerContext) {
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
