"""How much memory this process uses and may still use, in bytes."""

from __future__ import annotations

import sys
from pathlib import Path

import torch


def _kilobytes(path: str, name: str) -> int | None:
    """The entry `name` of one of Linux's `/proc` files; None on other systems."""
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
    except OSError:
        pass
    return None


def resident_bytes() -> int | None:
    kilobytes = _kilobytes("/proc/self/status", "VmRSS")
    return None if kilobytes is None else kilobytes * 1024


def peak_resident_bytes() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_bytes(device: torch.device) -> int | None:
    """What can still be allocated on the device without pushing anything out; None where the system does not tell."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    kilobytes = _kilobytes("/proc/meminfo", "MemAvailable") if device.type == "cpu" else None
    return None if kilobytes is None else kilobytes * 1024


def is_out_of_memory(error: BaseException) -> bool:
    """torch has a class of its own for accelerators, and a plain RuntimeError for the processor's memory."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def memory_stats(device: torch.device | None) -> dict[str, int]:
    stats = {"memory/rss_bytes": resident_bytes(), "memory/peak_rss_bytes": peak_resident_bytes()}
    if device is not None and device.type == "cuda":
        stats["memory/device_bytes"] = torch.cuda.memory_allocated(device)
        stats["memory/peak_device_bytes"] = torch.cuda.max_memory_allocated(device)
    return {name: value for name, value in stats.items() if value is not None}
