/** `lora_config` of the protocol as an adapter of an engine. */
import { randomInt } from "node:crypto";
import { z } from "zod";
import type { Capabilities } from "../../backends/engine.ts";
import { UserError } from "../../errors.ts";
import type { LoraAdapter } from "../state/records.ts";

/** Tinker's own clients do not send alpha; the scale is then 32 / rank. */
const defaultAlpha = 32;

export const loraSchema = z.looseObject({
  /** A larger rank only exhausts memory: no model has matrices of a higher rank. */
  rank: z.int().min(1).max(16_384).default(32),
  alpha: z.number().gt(0).default(defaultAlpha),
  seed: z.int().nullish(),
  train_unembed: z.boolean().default(true),
  train_mlp: z.boolean().default(true),
  train_attn: z.boolean().default(true),
});

/** @throws UserError when nothing would be trained, or the engine cannot */
export function adapterOf(config: z.output<typeof loraSchema>, { loraTargets }: Capabilities): LoraAdapter {
  const { rank, alpha, seed, train_attn, train_mlp, train_unembed } = config;
  const wanted = { attn: train_attn, mlp: train_mlp, unembed: train_unembed };
  const targets = (["attn", "mlp", "unembed"] as const).filter((target) => wanted[target]);
  if (targets.length === 0) throw new UserError("at least one of train_attn, train_mlp and train_unembed must be true");
  const missing = targets.filter((target) => !loraTargets.includes(target));
  if (missing.length > 0) throw new UserError(`this engine does not support LoRA on ${missing.join(", ")}`);
  return { kind: "lora", rank, alpha, targets, seed: seed ?? randomInt(2 ** 47) };
}
