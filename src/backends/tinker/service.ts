/** Which Tinker service a configuration names, and the options of the engine over it. */
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import type { EngineHooks } from "../descriptor.ts";
import type { TinkerEngineOptions } from "./engine.ts";

const hostedUrl = "https://tinker.thinkingmachines.dev/services/tinker-prod";
/** `hone serve` on this machine accepts any key, but requires one. */
const localKey = "tml-local";

/** Whether an address or a key is set. */
export function namesService({ tinker_base_url: url }: Config, env: NodeJS.ProcessEnv = process.env): boolean {
  return (url ?? env.TINKER_BASE_URL) !== undefined || Boolean(env.TINKER_API_KEY);
}

/**
 * @returns null without an address and a key: Hone's own service in this process
 * @throws UserError for an address that is not a URL, and for a remote service without a key
 */
export function tinkerService(
  config: Config,
  env: NodeJS.ProcessEnv = process.env,
): { baseUrl: string; apiKey: string } | null {
  const given = config.tinker_base_url ?? env.TINKER_BASE_URL ?? null;
  const apiKey = env.TINKER_API_KEY;
  if (!namesService(config, env)) return null;
  if (given === null) return { baseUrl: hostedUrl, apiKey: apiKey! };
  if (!URL.canParse(given)) {
    throw new UserError(`tinker_base_url: ${given} is not a URL`, { hint: "tinker_base_url=http://127.0.0.1:8000" });
  }
  const { hostname } = new URL(given);
  const loopback = ["127.0.0.1", "localhost", "[::1]"].includes(hostname);
  if (!apiKey && !loopback) {
    throw new UserError(`the Tinker service at ${given} requires an API key`, { hint: "Set TINKER_API_KEY." });
  }
  return { baseUrl: given.replace(/\/+$/, ""), apiKey: apiKey ?? localKey };
}

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
    tokenizerFolder: async (model) => (await import("./tokenizer-files.ts")).tokenizerFolder(model),
    onStatus,
    media,
  };
}
