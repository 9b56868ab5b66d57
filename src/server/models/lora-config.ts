/** `lora_config` of the protocol as an adapter of an engine. */
import { randomInt } from "node:crypto";
import type { z } from "zod";
import type { Capabilities } from "../../backends/engine.ts";
import { UserError } from "../../errors.ts";
import type { loraConfig } from "../../tinker-protocol/parameters.ts";
import type { LoraAdapter } from "../state/records.ts";

/** @throws UserError when nothing would be trained, or the engine cannot */
export function adapterOf(config: z.output<typeof loraConfig>, { loraTargets }: Capabilities): LoraAdapter {
  const { rank, alpha, seed, train_attn, train_mlp, train_unembed } = config;
  const wanted = { attn: train_attn, mlp: train_mlp, unembed: train_unembed };
  const targets = (["attn", "mlp", "unembed"] as const).filter((target) => wanted[target]);
  if (targets.length === 0) throw new UserError("at least one of train_attn, train_mlp and train_unembed must be true");
  const missing = targets.filter((target) => !loraTargets.includes(target));
  if (missing.length > 0) throw new UserError(`this engine does not support LoRA on ${missing.join(", ")}`);
  return { kind: "lora", rank, alpha, targets, seed: seed ?? randomInt(2 ** 47) };
}
