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
        vision = vision_of(model.base_model, folder)
    except UserMistake as mistake:
        return None, mistake.message
    if vision.sees_ahead:
        return None, "verl's rows are read from left to right, but the parts of an image attend to each other; use rllm/backend=local"
    return vision, None
