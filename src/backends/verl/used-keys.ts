/** Which keys of verl's own tree its workers read here. The others belong to verl's trainer, which Hone replaces. */
import { verlNames, verlOwnKeys } from "../../config/compose/sync/shared-keys.ts";

const under = (section: string, names: readonly string[]) => names.map((name) => `${section}.${name}`);

/** Keys, and sections with all their keys. */
const used: readonly string[] = [
  ...verlNames.keys(),
  ...verlOwnKeys.map(([native]) => native),
  "actor_rollout_ref.model",
  "actor_rollout_ref.ref",
  "actor_rollout_ref.nccl_timeout",
  ...under("actor_rollout_ref.actor", [
    ...["strategy", "fsdp_config", "megatron", "veomni", "torchtitan", "mindspeed", "optim", "checkpoint", "profiler"],
    ...["ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu"],
    ...["use_torch_compile", "use_remove_padding", "use_fused_kernels", "ulysses_sequence_parallel_size"],
    ...["entropy_from_logits_with_chunking", "entropy_from_logits_chunk_size", "entropy_checkpointing"],
    ...["pad_to_length", "qat"],
  ]),
  ...under("critic", [
    ...["strategy", "fsdp", "fsdp_config", "megatron", "veomni", "torchtitan", "mindspeed", "optim", "model"],
    ...["ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu"],
    ...["forward_micro_batch_size", "forward_micro_batch_size_per_gpu", "forward_max_token_len_per_gpu"],
    ...["ulysses_sequence_parallel_size", "checkpoint", "profiler"],
  ]),
  // Composition reads them.
  ...under("actor_rollout_ref.rollout", ["do_sample", "val_kwargs.do_sample"]),
  ...under("trainer", ["nnodes", "n_gpus_per_node", "device"]),
  "ray_kwargs.ray_init",
  "model_engine",
];

/** Parts of the used sections that Hone sets itself, with the key that sets them. */
const replaced: Readonly<Record<string, string>> = {
  "actor_rollout_ref.actor.optim.betas": "set training.beta1 and training.beta2",
  "critic.optim.betas": "set training.beta1 and training.beta2",
  "critic.optim.weight_decay": "set training.weight_decay",
  "critic.optim.clip_grad": "set training.max_grad_norm",
  "critic.model.path": "the critic starts from model.name",
  "critic.model.tokenizer_path": "the critic starts from model.name",
};

const reasons: readonly (readonly [section: string, reason: string])[] = [
  ["actor_rollout_ref.rollout", "a vLLM server that Hone starts samples, and does not read it"],
  ["data", "the experiment's script reads the data"],
];

const isIn = (key: string, section: string) => key === section || key.startsWith(`${section}.`);

/** Why a key of verl's own tree has no effect; undefined if it has. */
export function reasonUnused(key: string): string | undefined {
  const instead = Object.entries(replaced).find(([section]) => isIn(key, section))?.[1];
  if (instead !== undefined) return `Hone's trainer sets it; ${instead}`;
  if (used.some((section) => isIn(key, section))) return undefined;
  return (
    reasons.find(([section]) => isIn(key, section))?.[1] ?? "it belongs to verl's own trainer, which Hone's replaces"
  );
}
