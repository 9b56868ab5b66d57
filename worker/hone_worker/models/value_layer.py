"""Reads the parts of reward models and critics that language models do not have: the linear layer from a hidden state to
one value, and the moments of the scores."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ..errors import UserMistake
from .checkpoint_files import check_model_folder, read_json

HEADS = ("score", "v_head.summary", "value_head")
"""Names of the layer: transformers' sequence classification, TRL's value head, OpenRLHF's. OpenRLHF's
configuration may name another one."""


@dataclass(frozen=True)
class ValueLayer:
    """In fp32: weight `[1, D]` and bias `[1]`, which is 0 where the files have none."""

    weight: Tensor
    bias: Tensor


def read_value_layer(directory: Path) -> ValueLayer | None:
    """None if the folder has no such layer. Raises UserMistake if it gives several values."""
    named = read_json(directory / "config.json").get("value_head_prefix")
    heads = [*([named] if isinstance(named, str) else []), *HEADS]
    tensors = _read(directory, [f"{head}.{part}" for head in heads for part in ("weight", "bias")])
    head = next((head for head in heads if f"{head}.weight" in tensors), None)
    if head is None:
        return None
    weight = tensors[f"{head}.weight"]
    if weight.ndim != 2 or len(weight) != 1:
        raise UserMistake(
            f"{directory}: {head}.weight has shape {list(weight.shape)}, so it gives {len(weight)} numbers for each sequence",
            "use a reward model with one label",
        )
    return ValueLayer(weight, tensors.get(f"{head}.bias", torch.zeros(1)))


def read_moments(directory: Path) -> list[float] | None:
    """Mean and standard deviation of the scores on the reward model's own data, which OpenRLHF stores in the
    configuration or as tensors; None if they are absent. Raises UserMistake if they cannot be used."""
    config = read_json(directory / "config.json")
    stored: dict = {name: config[name] for name in ("mean", "std") if name in config}
    for name, tensor in _read(directory, ["mean", "std"]).items():
        stored.setdefault(name, tensor.reshape(-1)[0].item() if tensor.numel() == 1 else None)
    if not stored:
        return None
    mean, std = stored.get("mean"), stored.get("std")
    if all(isinstance(value, int | float) and isfinite(value) for value in (mean, std)) and std > 0:
        return [float(mean), float(std)]
    raise UserMistake(
        f"{directory}: the stored mean {mean} and standard deviation {std} of the scores are not usable",
        "correct `mean` and `std` in config.json, or remove both",
    )


def _read(directory: Path, names: list[str]) -> dict[str, Tensor]:
    """The tensors of these names, in fp32."""
    found: dict[str, Tensor] = {}
    for path in check_model_folder(directory).paths:
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name).float() for name in set(file.keys()).intersection(names)}
    return found
