"""Whether vLLM's own model class accepts the adapters that Hone exports. Runs with the Python of an environment that has vLLM, which
has neither the worker nor PEFT:

    python load_in_vllm.py DIRECTORY

DIRECTORY/KIND has a model's config.json and an adapter in `adapter`, and one that also adapts experts in `experts` if it has any. Prints
`vllm` and `vllm_version` of record.json. Models are built by vLLM with random weights, and its manager of adapters loads the files."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}

import torch  # noqa: E402
import vllm  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import destroy_model_parallel, init_distributed_environment, initialize_model_parallel  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.lora.layers import BaseLayerWithLoRA, FusedMoEWithLoRA  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.lora.worker_manager import WorkerLoRAManager  # noqa: E402
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig  # noqa: E402
from vllm.model_executor.model_loader.utils import get_model_cls, initialize_model  # noqa: E402
from vllm.model_executor.models import registry  # noqa: E402
from vllm.model_executor.models.interfaces import supports_lora  # noqa: E402
from vllm.platforms.cpu import CpuPlatform  # noqa: E402
from vllm.triton_utils import HAS_TRITON, triton  # noqa: E402

registry._run_in_subprocess = lambda run: run()  # it imports vLLM for each class, so as not to open a GPU


def _without_kernel(self: FusedMoEWithLoRA, experts: Any) -> None:
    """The layer of experts with adapters, without the kernel, which needs a GPU. Only its names and shapes are used here."""
    BaseLayerWithLoRA.__init__(self)
    self.base_layer, self.moe_config, self._shared_experts = experts, experts.moe_config, experts._shared_experts
    parallel = experts.moe_config.moe_parallel_config
    self.tp_size, self.tp_rank, self.device = parallel.tp_size, parallel.tp_rank, torch.device("cpu")
    self._w13_slices = 2 if experts.moe_config.is_act_and_mul else 1
    self.enable_moe_shared_loras = False
    self.n_slices = self.local_num_experts * (self._w13_slices + 1)


def _attention(cls: type, backend: Any, attn_selector_config: Any, **more: Any) -> str:
    """Attention to all keys also where only chosen ones are seen, for which there is no kernel for CPUs."""
    return _find_attention(backend, attn_selector_config=attn_selector_config._replace(use_sparse=False), **more)


def _check_experts(self: FusedMoEConfig) -> None:
    """Experts without a gate, for which there is no kernel for CPUs."""
    with suppress(NotImplementedError):
        _check(self)


_find_attention, _check = CpuPlatform.get_attn_backend_cls, FusedMoEConfig.__post_init__
CpuPlatform.get_attn_backend_cls = classmethod(_attention)
FusedMoEConfig.__post_init__ = _check_experts
if not HAS_TRITON:
    triton.set_allocator = lambda allocate: None
FusedMoEWithLoRA.__init__ = _without_kernel
FusedMoEWithLoRA.set_mapping = BaseLayerWithLoRA.set_mapping


def main(directory: Path) -> None:
    found = {}
    for folder in sorted(directory.iterdir()):
        found[folder.name] = result = _result(folder)
        print(folder.name, result, file=sys.stderr, flush=True)
    print(json.dumps({"vllm": found, "vllm_version": vllm.__version__.split("+")[0]}))


def _result(folder: Path) -> bool | str:
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    if architecture not in registry.ModelRegistry.get_supported_archs():
        return "vLLM has no class for this family"
    if not (folder / "adapter").exists():
        return "has no layers that an adapter can have"
    result = _loaded(folder, "adapter")
    if result is not True or not (folder / "experts").exists():
        return result
    with_experts = _loaded(folder, "experts")
    return True if with_experts is True else f"without experts; with them, {with_experts}"


def _loaded(folder: Path, adapter: str) -> bool | str:
    try:
        ignored = _ignored(folder, adapter)
    except Exception as error:  # noqa: BLE001 - the table says what fails
        text = " ".join(str(error).split())
        if "is not supported for LoRA" in text:
            return "vLLM has no LoRA for this family"
        if "expected target modules" in text:
            received = re.findall(r"'([^']+)'", text.split("but received")[1])
            return f"vLLM refuses adapters of {', '.join(_last_names(received))}"
        if "fused 3D MoE weights" in text:
            return "vLLM refuses adapters of experts, which Hone stores for all experts of a layer together"
        described = f"{type(error).__name__}: {text.replace(str(folder), '')}".removesuffix(": ")
        return f"not measured, because vLLM cannot build this tiny model on a CPU ({described.split(' [')[0][:150]})"
    return f"vLLM ignores adapters of {', '.join(ignored)}" if ignored else True


def _last_names(names: Iterable[str]) -> list[str]:
    return sorted({name.removesuffix(".base_layer").rsplit(".", 1)[-1] for name in names})


def _ignored(folder: Path, adapter: str) -> list[str]:
    """Layers of the adapter that change nothing in vLLM. Raises what vLLM raises."""
    arguments = EngineArgs(
        model=str(folder), skip_tokenizer_init=True, enable_lora=True, max_lora_rank=8, max_loras=1, dtype="float32",
        enforce_eager=True, load_format="dummy", max_model_len=64, max_num_batched_tokens=64, max_num_seqs=4,
        enable_prefix_caching=False, mamba_cache_mode="none")  # fmt: skip
    config = arguments.create_engine_config()
    if not supports_lora(architecture := get_model_cls(config.model_config)):
        raise ValueError(f"{architecture} is not supported for LoRA")
    destroy_model_parallel()  # mixtures have a group more
    with set_current_vllm_config(config):
        initialize_model_parallel(1, 1)
        model = initialize_model(config)
        manager = WorkerLoRAManager(config, torch.device("cpu"), getattr(model, "embedding_modules", {}))
        manager.create_lora_manager(model, config)
        request = LoRARequest("adapter", 1, str(folder / adapter))
        loaded = manager._load_adapter(request)
        inner = manager._adapter_manager
        inner.add_adapter(loaded)
        inner.activate_adapter(1)
    used = {name for module in inner.modules for name in (module, f"{module}.base_layer")}
    return _last_names(name for name in loaded.loras if name not in used)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as store:
        init_distributed_environment(1, 0, f"file://{store}/store", 0, "gloo")
        main(Path(sys.argv[1]))
