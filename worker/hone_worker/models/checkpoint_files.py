"""Checks a Hugging Face model folder before anything is loaded from it: complete, readable, safetensors
only."""

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ..errors import UserMistake

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class WeightFiles:
    """The weights of a model folder, as their headers tell."""

    paths: tuple[Path, ...]
    elements: int
    tensors: int


def read_json(path: Path) -> dict:
    """A JSON object from a model's file; UserMistake if it is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserMistake(f"{path} does not exist", "name a complete Hugging Face model folder") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserMistake(f"{path} is not valid JSON: {error}", "download or copy the model again") from None
    if not isinstance(value, dict):
        raise UserMistake(f"{path} holds no JSON object", "download or copy the model again")
    return value


def check_model_folder(directory: Path) -> WeightFiles:
    """Raises UserMistake unless the folder holds a configuration and whole safetensors files."""
    config = read_json(directory / "config.json")
    if "model_type" not in config:
        raise UserMistake(
            f"{directory / 'config.json'} names no model_type", "name a complete Hugging Face model folder"
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
                f"{directory} has its weights only as {pickles[0]}, a pickle, which can run code when opened",
                "convert it to safetensors with a tool you trust, or use a copy that has safetensors",
            )
        raise UserMistake(
            f"{directory} lacks {', '.join(missing) or 'model.safetensors'}",
            "download or copy the model again",
        )
    shapes = [shape for path in paths for shape in _shapes(path)]
    return WeightFiles(tuple(paths), sum(map(prod, shapes)), len(shapes))


def check_sizes(directory: Path, config: Any, files: WeightFiles) -> None:
    """Raises UserMistake when a model of this configuration cannot have these weights: building one with a
    million layers to find out would take all memory."""
    hint = "compare config.json with the original model's, or copy the model again"

    def size(name: str) -> int:
        value = getattr(config, name, None)
        if not isinstance(value, int):  # Absent, or one for each layer.
            return 1
        if value < 1:
            raise UserMistake(f"{directory / 'config.json'}: {name} is {value}, not a positive number", hint)
        return value

    layers, hidden = size("num_hidden_layers"), size("hidden_size")
    width = max(size("vocab_size"), size("intermediate_size"))
    if layers > files.tensors or hidden * width > files.elements:
        raise UserMistake(
            f"{directory / 'config.json'} describes {layers} layers and matrices of {hidden} x {width}, but the "
            f"weights are {files.tensors} tensors of {files.elements} values in all",
            hint,
        )


def _shapes(path: Path) -> list[list[int]]:
    """The shapes of the tensors in a safetensors file, whose size must be what its header says."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size - 8:
                raise ValueError("its header is cut off")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if 8 + length + end != size:
            raise ValueError(f"it holds {size} bytes, its header says {8 + length + end}")
        return [entry["shape"] for entry in header.values()]
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserMistake(
            f"{path} is not a whole safetensors file: {error}", "download or copy the model again"
        ) from None
