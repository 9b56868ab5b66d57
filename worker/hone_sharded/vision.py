"""Removes the vision part from a model. It is not trained, so every rank keeps a full copy outside of the sharded model."""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from hone_worker.errors import UserMistake
from hone_worker.images.pictures import Piece, place
from hone_worker.images.vision import Vision, vision_of
from hone_worker.models.plain_model import PlainModel
from torch import Tensor


@dataclass(frozen=True)
class VisionPart:
    """The vision part of a model whose language part is sharded."""

    vision: Vision
    weights: dict[str, Tensor]
    """The weights, by their names in the model's files."""

    def features(self, pieces: list[Piece], device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Returns the places `[K]` of image tokens in padded rows, and the features `[K,D]` that replace them."""
        placed = place(pieces, device)
        return None if placed is None else (placed.places, self.vision.features(placed.images)[placed.features])

    def positions(self, pieces: list[Piece], shape: tuple[int, int]) -> np.ndarray | None:
        """The positions `[3,B,L]` of padded rows `[B,L]`; None if the model numbers all tokens in order."""
        flat = torch.arange(shape[1]).expand(shape).flatten()
        found = self.vision.row_positions(pieces, flat) if pieces else None
        return None if found is None else found.view(3, *shape).numpy()


def take_vision(model: PlainModel) -> VisionPart | None:
    """Returns None for a language model. Raises UserMistake if the image processor cannot be used."""
    base, source = model.base, model.source
    if not callable(getattr(base, "get_image_features", None)):
        return None
    seeing = copy.copy(base)
    seeing._modules = dict(base._modules)
    decoder = model.module.get_decoder()
    weights: dict[str, Tensor] = {}
    for name, part in list(base._modules.items()):
        if part is decoder:
            del seeing._modules[name]
            continue
        part.to(source.device).requires_grad_(False)
        del base._modules[name]
        weights |= {f"{model.base_name}.{name}.{key}": value for key, value in part.state_dict().items()}
    vision = vision_of(seeing, model.directory, source.processor)
    vision.most_pixels = source.most_pixels
    if hasattr(base.config.vision_config, "deepstack_visual_indexes"):
        raise UserMistake(
            f"images for models of type {base.config.model_type} are not supported with local.processes > 1",
            "use local.processes=1",
        )
    return VisionPart(vision, weights)
