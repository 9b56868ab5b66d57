"""Writes folders that are complete or do not exist: under a temporary name, synchronized to disk, then
renamed."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from .errors import UserMistake


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
