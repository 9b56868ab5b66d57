"""How much memory there is, how much was used, and how running out of it looks. Knows nothing about
models."""

import ctypes
import re
import sys
from pathlib import Path

import torch

_CPU_ALLOCATION = re.compile(
    r"DefaultCPUAllocator|can't allocate memory|not enough memory|MPS backend out of memory"
)

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
"""Of glibc alone."""


def available_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on the device; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return _available_host_bytes() if device.type == "cpu" else None


def peak_rss_bytes() -> int:
    """The most memory this process has held; 0 where the system does not tell."""
    return _field("/proc/self/status", "VmHWM")


def rss_bytes() -> int:
    """Memory this process holds now; 0 where the system does not tell."""
    return _field("/proc/self/status", "VmRSS")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that a tensor found no room."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(_CPU_ALLOCATION.search(str(error)))


def release_cached(device: torch.device) -> None:
    """Gives memory that torch keeps for later back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def trim_heap() -> None:
    """Gives freed memory that the C library keeps for later back to the system."""
    if _malloc_trim is not None:
        _malloc_trim(0)


def _available_host_bytes() -> int | None:
    """What the kernel says is available, or what the container's limit leaves, whichever is less."""
    known = [_field("/proc/meminfo", "MemAvailable")]
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            held = int(Path("/sys/fs/cgroup/memory.current").read_text())
            cache = re.search(r"^inactive_file (\d+)", Path("/sys/fs/cgroup/memory.stat").read_text(), re.M)
            known.append(int(limit) - held + (int(cache[1]) if cache else 0))
    except (OSError, ValueError):
        pass  # no container limit to be read
    known = [bytes_ for bytes_ in known if bytes_ > 0]
    return min(known) if known else None


def _field(path: str, name: str) -> int:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(path).read_text(), re.M)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def memory_stats(device: torch.device | None) -> dict[str, float]:
    """Figures for the metrics, in bytes: of this process, and of the accelerator where there is one."""
    stats = {"memory/rss_bytes": float(rss_bytes()), "memory/peak_rss_bytes": float(peak_rss_bytes())}
    if device is not None and device.type == "cuda":
        stats["memory/device_bytes"] = float(torch.cuda.memory_allocated(device))
        stats["memory/peak_device_bytes"] = float(torch.cuda.max_memory_allocated(device))
    return stats
