"""verl's FSDP2 engines registered for a CPU. Importing this module registers them; `import verl` must have finished."""

from unittest.mock import patch

import torch
import verl.utils.model
from torch.distributed.fsdp import CPUOffloadPolicy
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl


def start_gloo() -> None:
    """Starts the process group. verl's own default names the backend of the CPU twice, which torch refuses."""
    initialize_global_process_group_ray(backend="cpu:gloo")


def _unpinned(pin_memory: bool = False) -> CPUOffloadPolicy:
    """Pinning memory needs an accelerator."""
    return CPUOffloadPolicy(pin_memory=False)


class _OnCPU:
    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        with patch.object(transformer_impl, "CPUOffloadPolicy", _unpinned):
            return super()._build_fsdp_module(module)


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class LanguageModelEngine(_OnCPU, transformer_impl.FSDPEngineWithLMHead):
    pass


@EngineRegistry.register(model_type="value_model", backend="fsdp2", device="cpu")
class ValueModelEngine(_OnCPU, transformer_impl.FSDPEngineWithValueHead):
    def _build_module(self) -> torch.nn.Module:
        # verl names flash_attention_2 where it loads a value model, regardless of the configuration.
        from transformers import AutoModelForTokenClassification as auto

        load = auto.from_pretrained

        def load_plain(*args: object, **kwargs: object) -> torch.nn.Module:
            return load(*args, **{**kwargs, "attn_implementation": "sdpa"})

        with patch.object(auto, "from_pretrained", load_plain):
            return super()._build_module()
