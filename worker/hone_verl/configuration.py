"""verl's configuration: the values that Hone composed, and for all other keys the defaults of the installed verl."""

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import verl
from hone_worker.errors import UserMistake, first_line
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from verl.utils.config import omega_conf_to_dataclass

_TREES = {"megatron": "_generated_ppo_megatron_trainer.yaml"}
_TREE = "_generated_ppo_trainer.yaml"


@dataclass
class Configuration:
    """`tree` is the configuration of verl's workers. `adapted` lists the values that were changed for this machine
    or for verl."""

    tree: DictConfig
    filled: int
    adapted: list[dict[str, Any]] = field(default_factory=list)

    def get(self, path: str) -> Any:
        return OmegaConf.select(self.tree, path)

    def set(self, path: str, value: Any, reason: str) -> None:
        before = self.get(path)
        if before != value:
            OmegaConf.update(self.tree, path, value, force_add=True)
            self.adapted.append({"path": path, "from": before, "to": value, "reason": reason})


def read_configuration(given: dict[str, Any]) -> Configuration:
    """Adds verl's defaults for missing keys, resolves references, and adapts the values to what is installed."""
    strategy = given.get("actor_rollout_ref", {}).get("actor", {}).get("strategy")
    shipped = OmegaConf.load(Path(verl.__file__).parent / "trainer" / "config" / _TREES.get(strategy, _TREE))
    known = {key: value for key, value in given.items() if key in shipped}
    try:
        tree = OmegaConf.merge(shipped, known)
        filled = len(_leaves(shipped) - _leaves(OmegaConf.create(known)))
        # verl's own program sets some required values later. They are an error only in sections that are used.
        whole = OmegaConf.create(OmegaConf.to_container(tree, resolve=True))
    except (OmegaConfBaseException, ValueError) as error:
        raise UserMistake(f"verl {verl.__version__} cannot read this configuration: {first_line(error)}") from error
    configuration = Configuration(whole, filled)
    _choose_micro_batches(configuration)
    if find_spec("flash_attn") is None:
        _replace_flash_attention(configuration)
    return configuration


def adapt_to_images(configuration: Configuration) -> None:
    """For a model that reads images."""
    if configuration.get("actor_rollout_ref.model.override_config.attn_implementation") == "sdpa":
        path = "actor_rollout_ref.model.use_remove_padding"
        configuration.set(path, False, "verl's packed rows of models that read images need flash-attn")


def as_dataclass(configuration: Configuration, path: str) -> Any:
    """A section of the configuration as verl's own dataclass."""
    try:
        return omega_conf_to_dataclass(configuration.get(path))
    except (InstantiationException, AssertionError, TypeError, ValueError) as error:
        reason = first_line(error.__cause__ or error)
        raise UserMistake(f"verl {verl.__version__} refuses {path}: {reason}") from error


def ranks(configuration: Configuration) -> tuple[int, int]:
    """The number of nodes, and the number of ranks on each node."""
    nodes, each = configuration.get("trainer.nnodes"), configuration.get("trainer.n_gpus_per_node")
    for name, value in (("nnodes", nodes), ("n_gpus_per_node", each)):
        if not isinstance(value, int) or value < 1:
            raise UserMistake(f"trainer.{name} is {value}; it must be a whole number above 0")
    return nodes, each


def _leaves(tree: DictConfig) -> set[str]:
    found = set()

    def walk(prefix: str, node: DictConfig) -> None:
        for key in node:
            path = f"{prefix}{key}"
            child = node._get_node(key)
            if isinstance(child, DictConfig) and not child._is_none() and not child._is_interpolation():
                walk(f"{path}.", child)
            else:
                found.add(path)

    walk("", tree)
    return found


def _choose_micro_batches(configuration: Configuration) -> None:
    """Sets a micro-batch size if neither it nor a token budget is set, because verl requires one of them."""
    reason = "verl needs a micro-batch size or a token budget"
    actor = "actor_rollout_ref.actor"
    unset = _unset(configuration, actor, "ppo_micro_batch_size", "use_dynamic_bsz")
    # verl requires the same value in both places.
    if unset or configuration.get(f"{actor}.use_dynamic_bsz"):
        configuration.set(f"{actor}.use_dynamic_bsz", True, reason)
        configuration.set("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz", True, reason)
    elif _unset(configuration, "actor_rollout_ref.rollout", "log_prob_micro_batch_size", "log_prob_use_dynamic_bsz"):
        size = configuration.get(f"{actor}.ppo_micro_batch_size_per_gpu")
        configuration.set("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu", size, reason)
    if _unset(configuration, "actor_rollout_ref.ref", "log_prob_micro_batch_size", "log_prob_use_dynamic_bsz"):
        configuration.set("actor_rollout_ref.ref.log_prob_use_dynamic_bsz", True, reason)
    if _unset(configuration, "critic", "ppo_micro_batch_size", "use_dynamic_bsz"):
        configuration.set("critic.use_dynamic_bsz", True, reason)


def _unset(configuration: Configuration, role: str, size: str, dynamic: str) -> bool:
    names = (size, f"{size}_per_gpu")
    sizes = [configuration.get(f"{role}.{name}") for name in names]
    return not configuration.get(f"{role}.{dynamic}") and sizes == [None, None]


def _replace_flash_attention(configuration: Configuration) -> None:
    for model in ("actor_rollout_ref.model", "critic.model"):
        path = f"{model}.override_config.attn_implementation"
        if configuration.get(path) in (None, "flash_attention_2"):
            configuration.set(path, "sdpa", "flash-attn is not installed in verl's environment, or there is no GPU")


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
    """For machines without a GPU."""
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
    _replace_flash_attention(configuration)
