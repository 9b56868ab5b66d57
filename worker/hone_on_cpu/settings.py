"""Adapts verl's configuration to CPUs."""

from hone_verl.configuration import Configuration, replace_flash_attention
from hone_worker.errors import UserMistake

# verl's default token budgets of micro-batches. The logits of such a budget do not fit into the memory of most machines.
_BUDGETS = {
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 16384,
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 16384,
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 16384,
    "critic.ppo_max_token_len_per_gpu": 32768,
    "critic.forward_max_token_len_per_gpu": 32768,
    "critic.ppo_infer_max_token_len_per_gpu": 32768,
}
_CPU_BUDGET = 2048
_ROLES = ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")


def adapt_to_cpu(configuration: Configuration) -> None:
    exact = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    for role in _ROLES:
        engine = f"{role}.fsdp" if role == "critic" else f"{role}.fsdp_config"
        if configuration.get(f"{role}.strategy") not in ("fsdp", "fsdp2"):
            raise UserMistake(
                f"{role}.strategy={configuration.get(f'{role}.strategy')} needs GPUs",
                "set model_engine=dp and strategy fsdp2, which run on CPUs",
            )
        for path in (f"{role}.strategy", f"{engine}.strategy"):
            configuration.set(path, "fsdp2", "FSDP 1 does not run on CPUs")
        configuration.set(f"{engine}.use_torch_compile", False, "compiling for a CPU takes longer than it saves")
        if configuration.get(f"{engine}.mixed_precision") is None:
            configuration.set(f"{engine}.mixed_precision", exact, "CPUs compute in fp32")
    configuration.set("actor_rollout_ref.rollout.checkpoint_engine.backend", "naive", "NCCL needs GPUs")
    for path, default in _BUDGETS.items():
        if configuration.get(path) in (None, default):
            configuration.set(path, _CPU_BUDGET, "verl's default needs the memory of a large GPU")
    replace_flash_attention(configuration)
