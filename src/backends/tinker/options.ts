/** The options of the Tinker engine from a configuration. */
import { existsSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { downloadFileToCacheDir } from "@huggingface/hub";
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import type { EngineHooks } from "../descriptor.ts";
import type { TinkerEngineOptions } from "./engine.ts";

export function tinkerEngineOptions(
  config: Config,
  service: { baseUrl: string; apiKey: string },
  { onStatus, media }: Pick<EngineHooks, "onStatus" | "media">,
): TinkerEngineOptions {
  return {
    ...service,
    model: config.model.name,
    overlap: config.fuse_forward_backward_and_optim_step,
    name: `${config.rllm.trainer.project_name}-${config.rllm.trainer.experiment_name}`,
    tokenizerFolder,
    onStatus,
    media,
  };
}

/** The folder with the small files of a model, by its path or hub id. @throws UserError when they cannot be fetched */
async function tokenizerFolder(model: string): Promise<string> {
  const local = resolve(model);
  if (existsSync(join(local, "tokenizer.json"))) return local;
  let folder = "";
  for (const path of [
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
  ]) {
    try {
      const file = await downloadFileToCacheDir({ repo: model, path });
      if (path === "tokenizer.json") folder = dirname(file);
    } catch (cause) {
      if (path !== "tokenizer.json") continue;
      throw new UserError(`the tokenizer of ${model} cannot be fetched from the hub: ${cause}`, {
        hint: "Name the model by a folder that contains its tokenizer.json, or make the hub reachable.",
        cause,
      });
    }
  }
  return folder;
}
