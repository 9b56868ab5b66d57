/** Which Tinker service a configuration names, and the options of the engine over it. */

import { UserError } from "../../base/errors.ts";
import type { Config } from "../../config/schema.ts";
import type { BackendDescriptor, EngineHooks } from "../backend.ts";
import type { Engine } from "../engine.ts";
import { engineCapabilities, honeCapabilities, isTinkerPath } from "./handshake.ts";

const hostedUrl = "https://tinker.thinkingmachines.dev/services/tinker-prod";
/** `hone serve` on this machine accepts any key, but requires one. */
const localKey = "tml-local";

/** Whether an address or a key is set. */
function namesService({ tinker_base_url: url }: Config, env: NodeJS.ProcessEnv = process.env): boolean {
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

// Training through a service with Tinker's protocol, or through Hone's own in this process.

/** @param openOwn opens Hone's own service in this process, for a configuration that names none */
export const tinkerBackend = (openOwn: (config: Config, hooks: EngineHooks) => Promise<Engine>): BackendDescriptor => ({
  // What an ordinary service lacks is known only after a request.
  capabilities: (config) => engineCapabilities(honeCapabilities, { otherModels: namesService(config) }),
  check({ config }) {
    tinkerService(config);
  },
  isRemote: (config) => namesService(config),
  holdsState: isTinkerPath,
  async open({ config }, hooks) {
    const service = tinkerService(config);
    if (service === null) return openOwn(config, hooks);
    const { openTinkerEngine, tinkerEngineOptions } = await import("./engine.ts");
    return openTinkerEngine(tinkerEngineOptions(config, service, hooks));
  },
});
