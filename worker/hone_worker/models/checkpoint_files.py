"""Checks that a Hugging Face model folder is complete and readable and has safetensors, before it is
loaded."""

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..errors import UserMistake

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
