"""The images of a model that reads them: their tokens, and the positions of tokens around them. No weights are needed."""

from pathlib import Path

import torch
from hone_worker.errors import UserMistake
from hone_worker.images.vision import Vision, vision_of
from hone_worker.models.loading import reads_images
from transformers import AutoConfig, AutoModelForImageTextToText


def open_vision(folder: Path) -> tuple[Vision | None, str | None]:
    """Without Vision, the second value is the reason; None for a language model."""
    config = AutoConfig.from_pretrained(folder)
    if not reads_images(config):
        return None, None
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    try:
        return vision_of(model.base_model, folder), None
    except UserMistake as mistake:
        return None, mistake.message
