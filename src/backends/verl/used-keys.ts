/** The keys of verl's own tree that take effect. The others belong to verl's trainer, which Hone replaces. */
import { verlNames } from "../../config/compose/sync/verl-keys.ts";
import { samplesWithVerl } from "./rollouts.ts";

/** @param names separated by white space */
const under = (section: string, names: string) =>
  names
    .trim()
    .split(/\s+/)
    .map((name) => `${section}.${name}`);

/** Keys, and sections with all their keys. */
const used: readonly string[] = [
  ...verlNames.keys(),
  "actor_rollout_ref.model",
  "actor_rollout_ref.ref",
  "actor_rollout_ref.nccl_timeout",
  ...under(
    "actor_rollout_ref.actor",
    `
    strategy fsdp_config megatron veomni torchtitan mindspeed optim checkpoint profiler
    ppo_micro_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu
    use_torch_compile use_remove_padding use_fused_kernels ulysses_sequence_parallel_size
    entropy_from_logits_with_chunking entropy_from_logits_chunk_size entropy_checkpointing
    pad_to_length qat
  `,
  ),
  ...under(
    "critic",
    `
    strategy fsdp fsdp_config megatron veomni torchtitan mindspeed optim model ppo_micro_batch_size
    ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu forward_micro_batch_size
    forward_micro_batch_size_per_gpu forward_max_token_len_per_gpu ulysses_sequence_parallel_size
    checkpoint profiler
  `,
  ),
  // The actor's workers read these for outputs without gradients.
  ...under(
    "actor_rollout_ref.rollout",
    `
    log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz
    log_prob_max_token_len_per_gpu
  `,
  ),
  // Composition reads these.
  ...under("actor_rollout_ref.rollout", "do_sample val_kwargs.do_sample"),
  ...under("trainer", "nnodes n_gpus_per_node device"),
  "ray_kwargs.ray_init",
  "model_engine",
];

/** Additional keys, if verl's own rollout servers sample. */
const usedByServers: readonly string[] = [
  "actor_rollout_ref.hybrid_engine",
  ...under(
    "actor_rollout_ref.rollout",
    `
    name mode nnodes n_gpus_per_node dtype load_format layered_summon seed full_determinism
    tensor_model_parallel_size data_parallel_size pipeline_model_parallel_size expert_parallel_size
    moe_tensor_parallel_size gpu_memory_utilization free_cache_engine enable_sleep_mode
    enforce_eager cudagraph_capture_sizes max_model_len max_num_seqs max_num_batched_tokens
    enable_chunked_prefill enable_prefix_caching scheduling_policy quantization
    quantization_config_file qat mtp engine_kwargs checkpoint_engine disable_log_stats prometheus
    profiler disaggregation custom
  `,
  ),
];

/** Parts of the used sections that Hone sets itself, with the key that sets them. */
const replaced: Readonly<Record<string, string>> = {
  "actor_rollout_ref.actor.optim.betas": "set training.beta1 and training.beta2",
  "critic.optim.betas": "set training.beta1 and training.beta2",
  "critic.optim.weight_decay": "set training.weight_decay",
  "critic.optim.clip_grad": "set training.max_grad_norm",
  "actor_rollout_ref.rollout.logprobs_mode": "the servers report the model's own log-probabilities",
  "critic.model.path": "the critic starts from model.name",
  "critic.model.tokenizer_path": "the critic starts from model.name",
};

const isIn = (key: string, section: string) => key === section || key.startsWith(`${section}.`);

/**
 * Why a key of verl's own tree has no effect; undefined if it has.
 * @param tree the whole configuration
 */
export function reasonUnused(key: string, tree: Readonly<Record<string, unknown>>): string | undefined {
  const instead = Object.entries(replaced).find(([section]) => isIn(key, section))?.[1];
  if (instead !== undefined) return `Hone's trainer sets it; ${instead}`;
  if (used.some((section) => isIn(key, section))) return undefined;
  if (samplesWithVerl(tree)) {
    if (usedByServers.some((section) => isIn(key, section))) return undefined;
  } else if (isIn(key, "actor_rollout_ref.rollout")) {
    return "it is not used, because Hone's own vLLM server samples";
  }
  if (isIn(key, "data")) return "the experiment's script reads the data";
  return "it belongs to verl's own trainer, which Hone's trainer replaces";
}
