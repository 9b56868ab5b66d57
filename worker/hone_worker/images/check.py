"""Opens the vision part of a model, and checks the placement of its features against transformers' own forward."""

import inspect
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor, nn

from ..errors import UserMistake
from .pictures import Pictures, Picture
from .vision import Vision, vision_of


class Probe:
    """A text around an image, with the hidden states from transformers' own forward."""

    def __init__(self, base: nn.Module, vision: Vision):
        """Call this before the model's attention is replaced."""
        self.image = vision.read("probe", _noise())
        text = np.setdiff1d(np.arange(3, 9, dtype=np.int32), vision.processor.token_id)
        self.ids = np.concatenate([text, self.image.tokens, text])
        self.pictures: Pictures = (Picture(len(text), self.image),)
        device = next(base.parameters()).device
        ids = torch.from_numpy(self.ids.astype(np.int64)).to(device)[None]
        inputs = {name: value.to(device) for name, value in vision.inputs(self.image).items()}
        if "mm_token_type_ids" in inspect.signature(base.forward).parameters:
            inputs["mm_token_type_ids"] = (ids == vision.processor.token_id).int()
        if vision.sees_ahead:
            _require_causal_text(base, torch.from_numpy(text.astype(np.int64)).to(device)[None])
            inputs["token_type_ids"] = (ids == vision.processor.token_id).int()
        self.expected = hidden_states(base, input_ids=ids, use_cache=False, **inputs)
        if hasattr(base, "rope_deltas"):
            base.rope_deltas = None  # otherwise a later forward of text would use it


def _require_causal_text(base: nn.Module, ids: Tensor) -> None:
    """Raises UserMistake if tokens that do not belong to an image see later ones, as in PaliGemma."""
    causal = base(input_ids=ids, use_cache=False).last_hidden_state.float()
    found = base(input_ids=ids, use_cache=False, token_type_ids=torch.zeros_like(ids)).last_hidden_state.float()
    if (found - causal).norm() > 0.1 * causal.norm():
        raise UserMistake("the text of a prompt is read in both directions, which is not supported; Gemma 3 and Qwen3-VL read images")


def hidden_states(forward: Callable[..., Any], **inputs: Tensor) -> tuple[Tensor, ...]:
    """The hidden states after each layer, the last one normalized. Only the last one if the model does not return others."""
    output = forward(**inputs, output_hidden_states=True)
    return output.hidden_states or (output.last_hidden_state,)


def open_vision(base: nn.Module, model_folder: Path, folder: Path, most_pixels: int) -> tuple[Vision, Probe]:
    """Opens the vision part of a model. Raises an error with the reason if it cannot be used."""
    vision = vision_of(base, model_folder, folder)
    probe = Probe(base, vision)
    vision.most_pixels = most_pixels
    return vision, probe


def _noise() -> bytes:
    """A small test image as a PNG file."""
    pixels = np.random.default_rng(0).integers(0, 256, (56, 84, 3), np.uint8)
    file = BytesIO()
    Pillow.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
