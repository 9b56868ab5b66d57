"""How much memory is free and used, and how running out of it is recognized."""

import ctypes
import re
import sys
from pathlib import Path

import torch

_CPU_ALLOCATION = re.compile(
    r"DefaultCPUAllocator|can't allocate memory|not enough memory|MPS backend out of memory"
)

# Only glibc has it.
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def available_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on the device; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return _available_host_bytes() if device.type == "cpu" else None


def total_bytes(device: torch.device) -> int | None:
    """The memory of the device; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    return _kilobytes("/proc/meminfo", "MemTotal") or None if device.type == "cpu" else None


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(_CPU_ALLOCATION.search(str(error)))


def release_cached(device: torch.device) -> None:
    """Returns the memory that torch caches to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def trim_heap() -> None:
    """Returns freed memory that the C library caches to the system."""
    if _malloc_trim is not None:
        _malloc_trim(0)


def memory_stats(device: torch.device | None) -> dict[str, float]:
    """Metrics in bytes: of this process (0 if unknown), and of its accelerator if it uses one."""
    stats = {
        "memory/rss_bytes": float(_kilobytes("/proc/self/status", "VmRSS")),
        "memory/peak_rss_bytes": float(_kilobytes("/proc/self/status", "VmHWM")),
    }
    if device is not None and device.type == "cuda":
        stats["memory/device_bytes"] = float(torch.cuda.memory_allocated(device))
        stats["memory/peak_device_bytes"] = float(torch.cuda.max_memory_allocated(device))
    return stats


def _available_host_bytes() -> int | None:
    """What the kernel reports as available, or what the container's limit leaves if that is less."""
    known = [_kilobytes("/proc/meminfo", "MemAvailable")]
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            held = int(Path("/sys/fs/cgroup/memory.current").read_text())
            cache = re.search(r"^inactive_file (\d+)", Path("/sys/fs/cgroup/memory.stat").read_text(), re.M)
            known.append(int(limit) - held + (int(cache[1]) if cache else 0))
    except (OSError, ValueError):
        pass  # no container, or another version of control groups
    return min((bytes_ for bytes_ in known if bytes_ > 0), default=None)


def _kilobytes(path: str, name: str) -> int:
    """The bytes of a line `name: N kB`; 0 if there is none."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(path).read_text(), re.M)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
