"""Image processors without transformers' processor of the whole model: older versions, such as the one in verl's environment
(5.9), do not have the needed method, SmolVLM's needs a package for videos, and Pixtral's needs torchvision."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image
from ..errors import UserMistake
from ..models.checkpoint_files import read_json

# By type of model, the module that has its image processor for Pillow, and the name of this class. AutoImageProcessor
# finds some of them only if torchvision is installed.
_PROCESSORS = {
    "qwen2_vl": ("qwen2_vl", "Qwen2VLImageProcessorPil"),
    "qwen2_5_vl": ("qwen2_vl", "Qwen2VLImageProcessorPil"),
    "idefics3": ("idefics3", "Idefics3ImageProcessorPil"),
    "smolvlm": ("smolvlm", "SmolVLMImageProcessorPil"),
    "mistral3": ("pixtral", "PixtralImageProcessorPil"),
}

FAMILIES = tuple(_PROCESSORS)
"""The types of models whose images are tested. Others are refused unless their features pass the test at the start."""


def open_processor(
    folder: Path, kind: str, token: str, length: int | None
) -> Callable[[Image.Image], tuple[Mapping[str, Any], str]]:
    """An image -> the inputs of the vision tower, and the text that stands for the image. `length`: the number of placeholders
    per tile. Raises UserMistake."""
    if kind not in _PROCESSORS:
        raise UserMistake(
            f"images for models of type {kind} need a later version of transformers than the installed one",
            f"supported with this version: {', '.join(FAMILIES)}",
        )
    module, name = _PROCESSORS[kind]
    pixels = getattr(import_module(f"transformers.models.{module}.image_processing_pil_{module}"), name)
    processor = pixels.from_pretrained(folder, local_files_only=True)
    stored = folder / "processor_config.json"
    names = {"image_seq_len": length, **(read_json(stored) if stored.exists() else {})}
    if module == "pixtral":
        side = names.get("patch_size", 16) * names.get("spatial_merge_size", 1)
        line_end, end = names.get("image_break_token", "[IMG_BREAK]"), names.get("image_end_token", "[IMG_END]")

        def write(found: Mapping[str, Any]) -> str:
            rows, columns = (int(length) // side for length in found["image_sizes"][0])
            return line_end.join([token * columns] * rows) + end

    elif module == "qwen2_vl":

        def write(found: Mapping[str, Any]) -> str:
            return token * (found["image_grid_thw"][0].prod() // processor.merge_size**2)

    else:
        write_tiles = import_module(f"transformers.models.{module}.processing_{module}").get_image_prompt_string
        tags = "<fake_token_around_image>", token, "<global-img>"

        def write(found: Mapping[str, Any]) -> str:
            return write_tiles(found["rows"][0][0], found["cols"][0][0], names["image_seq_len"], *tags)

    options = {"return_row_col_info": True} if module in ("idefics3", "smolvlm") else {}

    def process(image: Image.Image) -> tuple[Mapping[str, Any], str]:
        found = processor(images=image, return_tensors="pt", **options)
        return found, write(found)

    return process
