"""A model's image processor: converts an image to the inputs of the vision tower and to tokens."""

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoImageProcessor, AutoTokenizer, PreTrainedConfig
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from ..errors import UnusableImage, UserMistake, first_line
from ..folders import read_json
from ..memory import is_out_of_memory

_CONFIGURATIONS = ("preprocessor_config.json", "processor_config.json")


class ImageProcessor:
    """Uses transformers' image processor for PIL, which does not need torchvision. The tokens come from the text that
    transformers' processor writes for an image."""

    def __init__(self, model_folder: Path, folder: Path, config: PreTrainedConfig, length: int | None):
        """`folder` has the processor's configuration. `length`: the number of placeholders per tile, for models with a
        fixed number. Raises UserMistake."""
        if not any((folder / name).exists() for name in _CONFIGURATIONS):
            raise UserMistake(
                f"{folder} has no {' or '.join(_CONFIGURATIONS)}", "name the image processor's folder with processor"
            )
        tokenizer = model_folder / "tokenizer.json"
        if not tokenizer.exists():
            raise UserMistake(f"images need {tokenizer}, which does not exist", "use a complete copy of the model")
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self.token_id = _image_token(config)
        self.token = self._tokenizer.id_to_token(self.token_id)
        if self.token is None:
            raise UserMistake(f"{tokenizer} has no token {self.token_id}, the model's image token")
        try:
            self._process = _open(model_folder, folder, config, self.token, length)
        except UserMistake:
            raise
        except Exception as error:  # noqa: BLE001 - transformers raises errors of many classes
            raise UserMistake(f"the image processor of {folder} cannot be used: {first_line(error)}") from error

    def __call__(self, image: Image.Image) -> tuple[dict[str, Tensor], np.ndarray]:
        """Returns the vision tower's inputs and int32 tokens. Raises UnusableImage for sizes that the model refuses."""
        try:
            found, text = self._process(image)
        except Exception as error:  # noqa: BLE001 - processors raise errors of many classes
            if is_out_of_memory(error):
                raise
            width, height = image.size
            raise UnusableImage(
                f"the model's image processor refuses {width} x {height} pixels: {first_line(error)}"
            ) from error
        inputs = {name: value for name, value in found.items() if isinstance(value, Tensor)}
        return inputs, np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


Process = Callable[[Image.Image], tuple[Mapping[str, Any], str]]
"""An image -> the inputs of the vision tower, and the text that stands for the image."""


def _open(model_folder: Path, folder: Path, config: PreTrainedConfig, token: str, length: int | None) -> Process:
    """transformers' processor of the model, without those of videos and sound, which would need more packages."""
    stored = {name: read_json(folder / name) if (folder / name).exists() else {} for name in _CONFIGURATIONS}
    named = next((found for found in (one.get("processor_class") for one in stored.values()) if found), None)
    known = {found.__name__: found for found in (PROCESSOR_MAPPING[key] for key in PROCESSOR_MAPPING)} if named else {}
    whole = known.get(named, PROCESSOR_MAPPING[type(config)])
    kind = "mistral3" if whole.__name__ == "PixtralProcessor" else config.model_type
    if kind == "mistral3" or not hasattr(whole, "_process_images"):
        return _open_older(folder, kind, token, length)
    classes = IMAGE_PROCESSOR_MAPPING_NAMES.get(kind)
    if isinstance(classes, dict) and "pil" not in classes:
        raise UserMistake(
            f"transformers' image processor of {kind} needs torchvision, which Hone does not use; Qwen3-VL and SmolVLM read images",
            "use one of these models",
        )
    pixels = AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(model_folder, trust_remote_code=False, local_files_only=True)
    accepted = signature(whole.__init__).parameters
    settings = {"image_seq_len": length, **stored[_CONFIGURATIONS[1]], "image_token": token}
    parts = {"image_processor": pixels, "tokenizer": tokenizer}
    chosen = {name: value for name, value in settings.items() if name in accepted and name not in (*parts, "chat_template")}
    missing = {name: None for name in whole.get_attributes() if name not in parts}
    images_only = type(whole.__name__, (whole,), {"check_argument_for_proper_class": lambda *_: None})
    try:
        processor = images_only(**parts, **missing, **chosen)
    except ImportError:  # a package that only videos need
        return _open_older(folder, kind, token, length)
    options = processor._merge_kwargs(tokenizer_init_kwargs={}, return_tensors="pt")["images_kwargs"]

    def process(image: Image.Image) -> tuple[Mapping[str, Any], str]:
        found, (text,) = processor._process_images([image], **options)
        return found, text

    return process


def _image_token(config: PreTrainedConfig) -> int:
    for name in ("image_token_id", "image_token_index"):
        if isinstance(found := getattr(config, name, None), int):
            return found
    raise UserMistake("the model's config.json has no image token", "use a complete copy of the model")


# Image processors without transformers' processor of the whole model: older versions, such as the one in verl's
# environment (5.9), do not have the needed method, SmolVLM's needs a package for videos, and Pixtral's needs
# torchvision.

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


def _open_older(folder: Path, kind: str, token: str, length: int | None) -> Process:
    """`length`: the number of placeholders per tile. Raises UserMistake."""
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
