"""The files of a saved state: `weights.safetensors`, `optimizer.safetensors` and `policy.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..errors import UserMistake
from ..folders import write_folder, write_json, write_tensors
from ..models.checkpoint_files import read_json

Shapes = Mapping[str, torch.Size]


@dataclass(frozen=True)
class StateFacts:
    """The content of `policy.json`."""

    adapter: dict
    version: int
    steps: int
    model: str
    is_critic: bool


@dataclass(frozen=True)
class State:
    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor] | None
    """Adam's moments, by the name of the weight with `.mean` or `.square`; None before the first step, or if omitted."""
    version: int
    steps: int


def write_state(
    directory: Path, facts: StateFacts, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor] | None
) -> None:
    """Writes the folder, which must not exist."""

    def fill(folder: Path) -> None:
        write_tensors(folder / "weights.safetensors", weights)
        if moments is not None:
            write_tensors(folder / "optimizer.safetensors", moments)
        state = {
            "adapter": facts.adapter,
            "version": facts.version,
            "steps": facts.steps,
            "model": facts.model,
        }
        if facts.is_critic:
            state["head"] = "value"
        write_json(folder / "policy.json", state)

    write_folder(directory, fill)


def read_state(directory: Path, adapter: dict, is_critic: bool, shapes: Shapes, optimizer: bool) -> State:
    """A saved state, or an exported adapter, of version 0. Raises UserMistake unless it fits a policy with this adapter
    and weights of these shapes."""
    if (directory / "adapter_config.json").exists():
        return State(read_adapter(directory, adapter, shapes), None, 0, 0)
    state = read_json(directory / "policy.json")
    _check_adapter(directory, adapter, state.get("adapter", {}))
    if (state.get("head") == "value") != is_critic:
        theirs, ours = ("a policy", "a critic") if is_critic else ("a critic", "a policy")
        raise UserMistake(
            f"{directory} contains the state of {theirs}, not of {ours}",
            "a run's checkpoint has the policy in policy/ and the critic in critic/",
        )
    weights = _tensors(directory / "weights.safetensors", shapes)
    moments = None
    if optimizer and state["steps"] > 0:
        expected = {f"{name}.{kind}": shape for kind in ("mean", "square") for name, shape in shapes.items()}
        moments = _tensors(directory / "optimizer.safetensors", expected)
    return State(weights, moments, state["version"], state["steps"])


def read_adapter(directory: Path, adapter: dict, shapes: Shapes) -> dict[str, Tensor]:
    """The weights of PEFT's files, as `export_adapter` writes them."""
    config = read_json(directory / "adapter_config.json")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if adapter["kind"] != "lora" or (rank, alpha) != (adapter["rank"], adapter["alpha"]):
        raise UserMistake(
            f"{directory} contains an adapter of rank {rank} and alpha {alpha}; this policy is {adapter}",
            "create the policy with the adapter's settings",
        )
    prefix = "base_model.model."
    found = _tensors(
        directory / "adapter_model.safetensors", {f"{prefix}{name}": shape for name, shape in shapes.items()}
    )
    weights = {name.removeprefix(prefix): tensor for name, tensor in found.items()}
    if more := sorted(set(weights) - set(shapes)):
        raise UserMistake(
            f"{directory} has adapters for modules that this policy does not adapt, for example {more[0]}",
            "create the policy with the adapter's targets",
        )
    return weights


def _check_adapter(directory: Path, adapter: dict, saved: dict) -> None:
    keys = ("kind", "rank", "alpha", "targets", "train_vision")
    ours, theirs = ({key: each[key] for key in keys if each.get(key)} for each in (adapter, saved))
    if ours != theirs:
        raise UserMistake(
            f"{directory} contains the state of another adapter: {theirs}, this policy has {ours}",
            "create the policy with the saved settings, or start from the base model",
        )


def _tensors(path: Path, expected: Shapes) -> dict[str, Tensor]:
    """The tensors of a file, which must have the expected names and shapes."""
    try:
        found = load_file(path)
    except Exception as error:
        raise UserMistake(f"{path} cannot be read: {error}", "use another checkpoint") from None
    wrong = [name for name, shape in expected.items() if name not in found or found[name].shape != shape]
    if wrong:
        raise UserMistake(
            f"{path} does not fit this model, for example {wrong[0]}",
            "load it with the model that it was saved with",
        )
    return found
