"""A model's image processor: converts an image to the inputs of the vision tower and to tokens."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoImageProcessor, PreTrainedConfig
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from ..errors import UnusableImage, UserMistake, first_line
from ..memory import is_out_of_memory
from ..models.checkpoint_files import read_json
from . import older_transformers

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
        try:
            self._pixels, self._write, self._options = _open(folder, config)
        except UserMistake:
            raise
        except Exception as error:  # noqa: BLE001 - transformers raises errors of many classes
            raise UserMistake(f"the image processor of {folder} cannot be used: {first_line(error)}") from error
        tokenizer = model_folder / "tokenizer.json"
        if not tokenizer.exists():
            raise UserMistake(f"images need {tokenizer}, which does not exist", "use a complete copy of the model")
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self.token_id = _image_token(config)
        self.token = self._tokenizer.id_to_token(self.token_id)
        if self.token is None:
            raise UserMistake(f"{tokenizer} has no token {self.token_id}, the model's image token")
        stored = folder / _CONFIGURATIONS[1]
        self._names: dict[str, Any] = {
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "global_image_tag": "<global-img>",
            "image_seq_len": length,
            **(read_json(stored) if stored.exists() else {}),
            "image_token": self.token,
            "image_token_id": self.token_id,
            "image_processor": self._pixels,
        }

    def __call__(self, image: Image.Image) -> tuple[dict[str, Tensor], np.ndarray]:
        """Returns the vision tower's inputs and int32 tokens. Raises UnusableImage for sizes that the model refuses."""
        try:
            found = self._pixels(images=image, return_tensors="pt", **self._options)
            text = self._write(_Names(self._names), found, 0)
        except Exception as error:  # noqa: BLE001 - processors raise errors of many classes
            if is_out_of_memory(error):
                raise
            width, height = image.size
            raise UnusableImage(
                f"the model's image processor refuses {width} x {height} pixels: {first_line(error)}"
            ) from error
        inputs = {name: value for name, value in found.items() if isinstance(value, Tensor)}
        return inputs, np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


class _Names(SimpleNamespace):
    """Stands for transformers' processor in the function that writes the text of an image."""

    def __init__(self, names: dict[str, Any]):
        super().__init__(**names)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"it needs {name}, which Hone does not know")


def _open(folder: Path, config: PreTrainedConfig) -> tuple[Any, Callable[..., str], dict[str, Any]]:
    """The image processor, the function that writes the text of an image, and the processor's options."""
    whole = PROCESSOR_MAPPING[type(config)]
    if not hasattr(whole, "replace_image_token"):
        return older_transformers.open_processor(folder, config)
    pixels = AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False, local_files_only=True)
    return pixels, whole.replace_image_token, getattr(whole, "images_kwargs", {})


def _image_token(config: PreTrainedConfig) -> int:
    for name in ("image_token_id", "image_token_index"):
        if isinstance(found := getattr(config, name, None), int):
            return found
    raise UserMistake("the model's config.json has no image token", "use a complete copy of the model")
