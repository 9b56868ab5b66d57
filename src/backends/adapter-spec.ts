import type { Config } from "../config/schema.ts";
import type { AdapterSpec } from "./engine.ts";

/** The adapter a configuration asks for. */
export function adapterSpec(config: Config): AdapterSpec {
  const { lora_rank: rank, lora_alpha: alpha, train_attn, train_mlp, train_unembed, train_vision } = config.model;
  const vision = train_vision ? ({ trainVision: true } as const) : {};
  if (rank === 0) return { kind: "full", ...vision };
  const trains = { attn: train_attn, mlp: train_mlp, unembed: train_unembed };
  const targets = (["attn", "mlp", "unembed"] as const).filter((target) => trains[target]);
  return { kind: "lora", rank, alpha, targets, seed: config.rllm.trainer.seed, ...vision };
}
