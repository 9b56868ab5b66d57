"""Folders of models and policies: complete or absent when Hone writes them, checked before Hone reads them."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import UserMistake

# Writing: under a temporary name, synchronized to disk, then renamed.


def write_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Calls `fill` with a temporary folder and renames it to `target`, which must not exist."""
    require_new(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The parent process removes the temporary folders of owners that have ended.
    owner = os.environ.get("HONE_OWNER", str(os.getpid()))
    temporary = target.with_name(f".{target.name}.{owner}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        fill(temporary)
        for path in temporary.rglob("*"):
            _sync(path)
        _sync(temporary)
        os.rename(temporary, target)
        _sync(target.parent)
    except OSError as error:
        error.filename = str(target)  # the user does not know the temporary name
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def require_new(target: Path) -> None:
    """Raises UserMistake if the folder exists."""
    if target.exists():
        raise UserMistake(f"{target} already exists", "name a new folder")


def write_json(path: Path, value: Any) -> None:
    """Readable JSON with a final line break."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a safetensors file. Views and tensors on a device are copied into contiguous host memory."""
    values = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(values, path, {"format": "pt"})
    except SafetensorError as error:
        # The library reports the system's error number only in its text.
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Reading: a Hugging Face model folder must be complete and readable and have safetensors.

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_COPY_AGAIN = "download or copy the model again"


@dataclass(frozen=True)
class WeightFiles:
    """The weights of a model folder, according to their headers."""

    paths: tuple[Path, ...]
    elements: int
    tensors: int


def read_json(path: Path) -> dict:
    """The JSON object in a file. Raises UserMistake if it has none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserMistake(f"{path} does not exist", "name a complete Hugging Face model folder") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserMistake(f"{path} is not valid JSON: {error}", _COPY_AGAIN) from None
    if not isinstance(value, dict):
        raise UserMistake(f"{path} is not a JSON object", _COPY_AGAIN)
    return value


def check_model_folder(directory: Path) -> WeightFiles:
    """Raises UserMistake unless the folder has a configuration and complete safetensors files."""
    config = read_json(directory / "config.json")
    if "model_type" not in config:
        raise UserMistake(
            f"{directory / 'config.json'} has no model_type", "name a complete Hugging Face model folder"
        )
    index = directory / "model.safetensors.index.json"
    if index.exists():
        paths = [directory / name for name in sorted(set(read_json(index).get("weight_map", {}).values()))]
    else:
        paths = [directory / "model.safetensors"]
    missing = [path.name for path in paths if not path.exists()]
    if missing or not paths:
        pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
        if pickles:
            raise UserMistake(
                f"{directory} has its weights only as {pickles[0]}, a pickle, which can run code",
                "convert it to safetensors with a tool you trust, or use a copy that has safetensors",
            )
        raise UserMistake(f"{directory} is missing {', '.join(missing) or 'model.safetensors'}", _COPY_AGAIN)
    shapes = [shape for path in paths for shape in _shapes(path)]
    return WeightFiles(tuple(paths), sum(map(prod, shapes)), len(shapes))


def check_sizes(directory: Path, config: Any, files: WeightFiles) -> None:
    """Raises UserMistake if a model of this configuration cannot have these weights. Building a model with a
    million layers to find out would take all memory."""
    hint = "compare config.json with the original model's, or copy the model again"

    def size(name: str) -> int:
        value = getattr(config, name, None)
        if not isinstance(value, int):  # absent, or a list with a value for each layer
            return 1
        if value < 1:
            raise UserMistake(f"{directory / 'config.json'}: {name} is {value}, not a positive number", hint)
        return value

    layers, hidden = size("num_hidden_layers"), size("hidden_size")
    width = max(size("vocab_size"), size("intermediate_size"))
    if layers > files.tensors or hidden * width > files.elements:
        raise UserMistake(
            f"{directory / 'config.json'} describes {layers} layers and matrices of {hidden} x {width}, but "
            f"the weights are {files.tensors} tensors of {files.elements} values in all",
            hint,
        )


def _shapes(path: Path) -> list[list[int]]:
    """The shapes of a safetensors file. Opening it compares its size with its header."""
    try:
        with safe_open(path, "pt") as file:
            return [file.get_slice(name).get_shape() for name in file.keys()]
    except (OSError, SafetensorError) as error:
        raise UserMistake(f"{path} is not a complete safetensors file: {error}", _COPY_AGAIN) from None


# The parts of reward models and critics that language models do not have: the linear layer from a hidden state to one
# value, and the moments of the scores.

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
