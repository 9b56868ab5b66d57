"""verl's FSDP2 engines for a CPU. verl imports this module after `platform`, at the end of `import verl`
(VERL_USE_EXTERNAL_MODULES)."""

from functools import partial
from typing import Any

import torch
import verl.utils.distributed
import verl.utils.model
from hone_verl.engine_images import ReadsImages
from torch.distributed.fsdp import CPUOffloadPolicy
from transformers import AutoModelForTokenClassification
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl


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


# verl has no setting for these: its process group names the backend of the CPU twice, which torch refuses, a reference
# pins memory, and a value model uses flash_attention_2.
verl.utils.distributed.initialize_global_process_group_ray = partial(
    verl.utils.distributed.initialize_global_process_group_ray, backend="cpu:gloo"
)
transformer_impl.CPUOffloadPolicy = _unpinned
verl.utils.model.load_valuehead_model = _load_value_model


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class LanguageModelEngine(ReadsImages, transformer_impl.FSDPEngineWithLMHead):
    pass


@EngineRegistry.register(model_type="value_model", backend="fsdp2", device="cpu")
class ValueModelEngine(transformer_impl.FSDPEngineWithValueHead):
    pass
