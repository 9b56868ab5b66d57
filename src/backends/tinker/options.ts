/** Which Tinker service a configuration means, and how it is reached. */
import { existsSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { downloadFileToCacheDir } from "@huggingface/hub";
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import type { TinkerEngineOptions } from "./engine.ts";

const hostedUrl = "https://tinker.thinkingmachines.dev/services/tinker-prod";
/** `hone serve` on this machine takes any key, but a key there must be. */
const localKey = "tml-local";

/** Null: neither an address nor a key is given, so Hone's own service in this process is meant. */
export function tinkerService(
  config: Config,
  env: NodeJS.ProcessEnv = process.env,
): { baseUrl: string; apiKey: string } | null {
  const given = config.tinker_base_url ?? env.TINKER_BASE_URL ?? null;
  const apiKey = env.TINKER_API_KEY;
  if (given === null && !apiKey) return null;
  if (given === null) return { baseUrl: hostedUrl, apiKey: apiKey! };
  if (!URL.canParse(given)) {
    throw new UserError(`tinker_base_url: ${given} is no address`, { hint: "tinker_base_url=http://127.0.0.1:8000" });
  }
  const { hostname } = new URL(given);
  const loopback = ["127.0.0.1", "localhost", "[::1]"].includes(hostname);
  if (!apiKey && !loopback)
    throw new UserError("there is no API key for the Tinker service", { hint: "Set TINKER_API_KEY." });
  return { baseUrl: given.replace(/\/+$/, ""), apiKey: apiKey ?? localKey };
}

export function tinkerEngineOptions(
  config: Config,
  service: { baseUrl: string; apiKey: string },
  hooks: { onStatus?: (text: string) => void },
): TinkerEngineOptions {
  return {
    ...service,
    model: config.model.name,
    overlap: config.fuse_forward_backward_and_optim_step,
    name: `${config.rllm.trainer.project_name}-${config.rllm.trainer.experiment_name}`,
    tokenizerFolder,
    ...hooks,
  };
}

/** The small files of a model by its folder or hub id. @throws UserError when they cannot be had */
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
        hint: "Name the model by a folder that holds its tokenizer.json, or make the hub reachable.",
        cause,
      });
    }
  }
  return folder;
}
