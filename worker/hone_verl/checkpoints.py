"""Folders of verl's checkpoints, with `hone.json` beside verl's own files."""

import json
from pathlib import Path
from typing import Any

from hone_worker.errors import UserMistake


def require_loadable(folder: Path, ranks: int, role: str) -> None:
    """Raises UserMistake for a checkpoint with which verl would fail during loading."""
    path = folder / "fsdp_config.json"
    saved = json.loads(path.read_text())["world_size"] if path.exists() else None
    if saved is None and not list(folder.glob(f"model_world_size_{ranks}_rank_*.pt")):
        raise UserMistake(f"{folder} is not a checkpoint of verl")
    if saved not in (None, ranks):
        raise UserMistake(
            f"{folder} was saved by {saved} ranks, but this run has {ranks}",
            "Set trainer.nnodes and trainer.n_gpus_per_node to the values of the saved run.",
        )
    of = _read(folder).get("role", role)
    if of != role:
        raise UserMistake(f"{folder} is the state of verl's {of}, not of verl's {role}")


def version_of(folder: Path) -> int:
    """0 for a checkpoint that verl itself wrote."""
    return _read(folder).get("version", 0)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "hone.json"
    return json.loads(path.read_text()) if path.exists() else {}
