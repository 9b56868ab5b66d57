"""verl's FSDP2 engines registered for a CPU. Importing this module registers them; `import verl` must have finished."""

from typing import Any

import torch
import verl.utils.model
from torch.distributed.fsdp import CPUOffloadPolicy
from transformers import AutoModelForTokenClassification
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl

from .engine_images import ReadsImages


def start_gloo() -> None:
    """Starts the process group. verl's own default names the backend of the CPU twice, which torch refuses."""
    initialize_global_process_group_ray(backend="cpu:gloo")


def _unpinned(pin_memory: bool) -> CPUOffloadPolicy:
    return CPUOffloadPolicy(pin_memory=False)


def _load_value_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> torch.nn.Module:
    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation="sdpa",
        trust_remote_code=trust_remote_code,
    )


# verl's engines have no setting for these: a reference pins memory, and a value model uses flash_attention_2.
transformer_impl.CPUOffloadPolicy = _unpinned
verl.utils.model.load_valuehead_model = _load_value_model


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class LanguageModelEngine(ReadsImages, transformer_impl.FSDPEngineWithLMHead):
    pass


@EngineRegistry.register(model_type="value_model", backend="fsdp2", device="cpu")
class ValueModelEngine(transformer_impl.FSDPEngineWithValueHead):
    pass
