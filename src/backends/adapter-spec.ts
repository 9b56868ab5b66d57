import type { Config } from "../config/schema.ts";
import { type AdapterSpec, loraTargets } from "./engine.ts";

/** The adapter a configuration asks for. */
export function adapterSpec(config: Config): AdapterSpec {
  const { lora_rank: rank, lora_alpha: alpha, train_vision } = config.model;
  const vision = train_vision ? ({ trainVision: true } as const) : {};
  if (rank === 0) return { kind: "full", ...vision };
  const targets = loraTargets.filter((target) => config.model[`train_${target}`]);
  return { kind: "lora", rank, alpha, targets, seed: config.rllm.trainer.seed, ...vision };
}
