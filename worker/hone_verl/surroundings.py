"""What verl and Ray read from the environment while they are imported, here and in their workers."""

import os
import secrets
from typing import Any

import torch

_PLUGIN = "hone_verl.platform_cpu"


def prepare(load: dict[str, Any]) -> str:
    """Returns the device, `cuda` or `cpu`. `load`: the request. A CPU needs Hone's platform for verl; a cluster
    that Hone starts gets a token that no other process has."""
    if (load.get("ray") or {}).get("address") is None:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    platform = os.environ.get("VERL_PLATFORM") or ("nvidia" if torch.cuda.is_available() else "cpu")
    if platform != "cpu":
        return "cuda"
    modules = [name for name in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",") if name]
    os.environ |= {"VERL_PLATFORM": platform, "VERL_USE_EXTERNAL_MODULES": ",".join([*modules, _PLUGIN])}
    return "cpu"
