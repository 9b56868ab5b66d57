"""Checks a Hugging Face model folder before anything is loaded from it: complete, readable, safetensors
only."""

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from .errors import UserMistake

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class WeightFiles:
    """The weights of a model folder, as their headers tell."""

    paths: tuple[Path, ...]
    elements: int


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
    return WeightFiles(tuple(paths), sum(_elements(path) for path in paths))


def _elements(path: Path) -> int:
    """Number of values in a safetensors file, whose size must be what its header says."""
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
        return sum(prod(entry["shape"]) for entry in header.values())
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserMistake(
            f"{path} is not a whole safetensors file: {error}", "download or copy the model again"
        ) from None
