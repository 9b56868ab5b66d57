"""The files of policies: a saved state (`weights.safetensors`, `optimizer.safetensors` and `policy.json`), and exports for other tools,
as PEFT's adapter files or as a Hugging Face folder."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.pytorch_utils import Conv1D

from ..errors import UserMistake
from ..folders import read_json, write_folder, write_json, write_tensors
from ..models.experts import ExpertMember, find_stacked
from ..models.linears import Member
from ..models.plain_model import PlainModel

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


# Exports for other tools.

_TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "generation_config.json",
    "*processor_config.json",
)

_NAMES_OF_EXPERTS = (".gate_proj", ".up_proj", ".down_proj")


def export_adapter(
    model: PlainModel, adapter: dict, members: list[Member | ExpertMember], weights: Mapping[str, Tensor], directory: Path
) -> None:
    """Writes adapter_config.json and adapter_model.safetensors, which PEFT loads over the same base model.
    `weights`: the adapter's, by their names in checkpoints."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.source.name if "/" in model.source.name else str(model.directory),
        "r": adapter["rank"],
        "lora_alpha": adapter["alpha"],
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": any(isinstance(member.module, Conv1D) for member in members),
        **_targets(model, members),
        "inference_mode": True,
    }
    tensors = {f"base_model.model.{name}": tensor for name, tensor in weights.items()}

    def fill(folder: Path) -> None:
        write_json(folder / "adapter_config.json", config)
        _write_shared(folder / "adapter_model.safetensors", tensors)

    write_folder(directory, fill)


def export_merged(
    model: PlainModel,
    replaced: Mapping[str, Tensor],
    directory: Path,
    base: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes a folder that transformers loads: the model's weights, some replaced by others of the same name, and
    its tokenizer. `base`: instead of the weights that the model holds."""
    config = read_json(model.directory / "config.json")
    config["dtype"] = str(model.dtype).removeprefix("torch.")
    config.pop("torch_dtype", None)
    config.pop("quantization_config", None)
    if _is_tied(model) and _head_weight(model) in replaced:
        config["tie_word_embeddings"] = False
    weights = merged_weights(model, replaced, base)

    def fill(folder: Path) -> None:
        _write_shared(folder / "model.safetensors", weights)
        write_json(folder / "config.json", config)
        for pattern in _TOKENIZER_FILES:
            for file in model.directory.glob(pattern):
                if file.is_file():
                    shutil.copyfile(file, folder / file.name)

    write_folder(directory, fill)


def merged_weights(
    model: PlainModel, replaced: Mapping[str, Tensor], base: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The model's weights by their names in its files, some replaced. The order is always the same."""
    weights = {**(model.module.state_dict() if base is None else base), **replaced}
    if _is_tied(model) and _head_weight(model) not in replaced:
        weights.pop(_head_weight(model), None)
    return revert_weight_conversion(model.module, weights)


def _head_weight(model: PlainModel) -> str:
    return f"{model.head_name}.weight"


def _is_tied(model: PlainModel) -> bool:
    return model.head.weight is model.module.get_input_embeddings().weight


def _write_shared(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Makes the file as readable as the umask allows: safetensors makes it readable only for its owner."""
    write_tensors(path, tensors)
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def _targets(model: PlainModel, members: list[Member | ExpertMember]) -> dict[str, list[str]]:
    """PEFT's names of what is adapted."""
    parameters = [member.name for member in members if isinstance(member, ExpertMember)]
    modules = [member for member in members if not isinstance(member, ExpertMember)]
    if find_stacked(model.base):
        # PEFT reads a name such as gate_proj as that of the experts, also for layers outside of them.
        mistaken = [member for member in modules if member.kind == "mlp" or member.name.endswith(_NAMES_OF_EXPERTS)]
        parameters += [f"{member.name}.weight" for member in mistaken]
        modules = [member for member in modules if member not in mistaken]
    named = {"target_modules": _module_names(model, [member.name for member in modules])}
    return named | ({"target_parameters": sorted(parameters)} if parameters else {})


def _module_names(model: PlainModel, adapted: list[str]) -> list[str]:
    """The adapted modules' last names if no other module has them, else their full names."""
    last = {name.rsplit(".", 1)[-1] for name in adapted}
    named = {name for name, _ in model.module.named_modules() if name.rsplit(".", 1)[-1] in last}
    return sorted(last) if named == set(adapted) else sorted(adapted)
