/** Which engine a configuration names. The only place that lists them; each is loaded when it is chosen. */
import type { Config } from "../config/schema.ts";
import type { Engine } from "./engine.ts";

export interface EngineHooks {
  /** The engine's own log. */
  logFile?: string;
  /** What the engine is busy with before it is ready: set-up, conversion, loading. */
  onStatus?: (text: string) => void;
}

const engines: Record<Config["rllm"]["backend"], (config: Config, hooks: EngineHooks) => Promise<Engine>> = {
  local: async (config, hooks) => {
    const [{ openLocalEngine }, { localEngineOptions }] = await Promise.all([
      import("./local/engine.ts"),
      import("./local/options.ts"),
    ]);
    return openLocalEngine(localEngineOptions(config, hooks));
  },
};

/** @throws UserError when the model or device named in the configuration cannot be used; RunError when the engine dies */
export function openEngine(config: Config, hooks: EngineHooks = {}): Promise<Engine> {
  return engines[config.rllm.backend](config, hooks);
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
