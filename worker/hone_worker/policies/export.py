"""Exports weights for other tools: as PEFT's adapter files, or as a Hugging Face folder."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.pytorch_utils import Conv1D

from ..folders import write_folder, write_json, write_tensors
from ..models.checkpoint_files import read_json
from ..models.experts import ExpertMember, find_stacked
from ..models.linears import Member
from ..models.plain_model import PlainModel

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
