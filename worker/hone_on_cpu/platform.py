"""verl's platform for machines without an accelerator. verl imports it while it is imported itself
(VERL_USE_EXTERNAL_MODULES), so it uses nothing else of verl."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _nothing(*_: Any, **__: Any) -> None:
    """Devices to select, caches to empty and streams to wait for do not exist."""


def _zero(*_: Any, **__: Any) -> int:
    return 0


# What verl calls on torch.cuda.
_DEVICE = SimpleNamespace(
    **{name: _nothing for name in ("set_device", "synchronize", "empty_cache", "ipc_collect")},
    **{name: _nothing for name in ("reset_peak_memory_stats", "manual_seed", "manual_seed_all")},
    **{name: _zero for name in ("memory_allocated", "max_memory_allocated")},
    **{name: _zero for name in ("memory_reserved", "max_memory_reserved")},
    mem_get_info=lambda *_: (0, 0),
    is_available=lambda: False,
    device_count=_zero,
    current_device=lambda: torch.device("cpu"),
    get_device_name=lambda *_: "CPU",
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """Gloo, one process per rank, no devices."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # only VERL_PLATFORM=cpu chooses it

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 0

    set_device = synchronize = manual_seed_all = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        return nullcontext()

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False
