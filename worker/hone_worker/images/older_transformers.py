"""Image processors of older versions of transformers, such as the one in verl's environment (5.9)."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import PreTrainedConfig

from ..errors import UserMistake

# By type of model, the module that has its image processor for Pillow, and the name of this class. AutoImageProcessor
# finds some of them only if torchvision is installed.
_PROCESSORS = {
    "qwen2_vl": ("qwen2_vl", "Qwen2VLImageProcessorPil"),
    "qwen2_5_vl": ("qwen2_vl", "Qwen2VLImageProcessorPil"),
    "idefics3": ("idefics3", "Idefics3ImageProcessorPil"),
    "smolvlm": ("smolvlm", "SmolVLMImageProcessorPil"),
}

FAMILIES = tuple(_PROCESSORS)
"""The types of models whose images are tested. Others are refused unless their features pass the test at the start."""


def open_processor(
    folder: Path, config: PreTrainedConfig
) -> tuple[Any, Callable[[SimpleNamespace, dict[str, Any], int], str], dict[str, Any]]:
    """The image processor, the function that later versions call `replace_image_token`, and the processor's options.
    Raises UserMistake."""
    kind = config.model_type
    if kind not in _PROCESSORS:
        raise UserMistake(
            f"images for models of type {kind} need a later version of transformers than the installed one",
            f"supported with this version: {', '.join(FAMILIES)}",
        )
    module, name = _PROCESSORS[kind]
    pixels = getattr(import_module(f"transformers.models.{module}.image_processing_pil_{module}"), name)
    processor = pixels.from_pretrained(folder, local_files_only=True)
    if module == "qwen2_vl":
        return processor, _write_patches, {}
    write_tiles = import_module(f"transformers.models.{module}.processing_{module}").get_image_prompt_string

    def write(names: SimpleNamespace, found: dict[str, Any], index: int) -> str:
        shape = found["rows"][0][index], found["cols"][0][index]
        tokens = names.fake_image_token, names.image_token, names.global_image_token
        return write_tiles(*shape, names.image_seq_len, *tokens)

    return processor, write, {"return_row_col_info": True}


def _write_patches(names: SimpleNamespace, found: dict[str, Any], index: int) -> str:
    return names.image_token * (found["image_grid_thw"][index].prod() // names.image_processor.merge_size**2)
