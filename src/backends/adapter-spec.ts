import type { Config } from "../config/schema.ts";
import { type AdapterSpec, loraTargets } from "./engine.ts";

/** The adapter a configuration asks for. */
export function adapterSpec(config: Config): AdapterSpec {
  const { lora_rank: rank, lora_alpha: alpha, train_vision } = config.model;
  const { train_attn: attn, train_mlp: mlp, train_experts: experts, train_unembed: unembed } = config.model;
  const vision = train_vision ? ({ trainVision: true } as const) : {};
  if (rank === 0) return { kind: "full", ...vision };
  const trains = { attn, mlp, experts, unembed };
  const targets = loraTargets.filter((target) => trains[target]);
  return { kind: "lora", rank, alpha, targets, seed: config.rllm.trainer.seed, ...vision };
}
