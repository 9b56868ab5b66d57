/** Which engine a configuration names. The only place that lists them; each is loaded when it is chosen. */
import type { Config } from "../config/schema.ts";
import { UserError } from "../errors.ts";
import type { Engine } from "./engine.ts";

export interface EngineHooks {
  /** The engine's own log. */
  logFile?: string;
  /** What the engine is busy with before it is ready: set-up, conversion, loading. */
  onStatus?: (text: string) => void;
}

type OpenEngine = (config: Config, hooks: EngineHooks) => Promise<Engine>;

const engines: Partial<Record<Config["rllm"]["backend"], OpenEngine>> = {
  local: async (config, hooks) => {
    const [{ openLocalEngine }, { localEngineOptions }] = await Promise.all([
      import("./local/engine.ts"),
      import("./local/options.ts"),
    ]);
    return openLocalEngine(localEngineOptions(config, hooks));
  },
  tinker: async (config, hooks) => {
    const [{ openTinkerEngine }, { tinkerEngineOptions, tinkerService }] = await Promise.all([
      import("./tinker/engine.ts"),
      import("./tinker/options.ts"),
    ]);
    const service = tinkerService(config);
    if (service) return openTinkerEngine(tinkerEngineOptions(config, service, hooks));
    // The server stands in front of engines; here, alone, an engine stands in front of the server.
    const { openOwnTinkerEngine } = await import("../server/in-process.ts");
    return openOwnTinkerEngine(config, hooks);
  },
};

/** @throws UserError when the model or device named in the configuration cannot be used; RunError when the engine dies */
export function openEngine(config: Config, hooks: EngineHooks = {}): Promise<Engine> {
  return requireBackend(config)(config, hooks);
}

/** @throws UserError when the configuration names a backend that is not built */
export function requireBackend({ rllm: { backend } }: Config): OpenEngine {
  const open = engines[backend];
  if (open !== undefined) return open;
  throw new UserError(`rllm.backend=${backend}: this backend is not built yet`, { hint: "use rllm.backend=local" });
}

/** The adapter a configuration asks for. */
export function adapterSpec(config: Config): import("./engine.ts").AdapterSpec {
  const { lora_rank, lora_alpha, train_attn, train_mlp, train_unembed } = config.model;
  if (lora_rank === 0) return { kind: "full" };
  const targets = [
    ...(train_attn ? (["attn"] as const) : []),
    ...(train_mlp ? (["mlp"] as const) : []),
    ...(train_unembed ? (["unembed"] as const) : []),
  ];
  return { kind: "lora", rank: lora_rank, alpha: lora_alpha, targets, seed: config.rllm.trainer.seed };
}
