"""The vision part of a model: images -> features of their placeholders, and positions of tokens around images."""

import inspect
from collections.abc import Hashable, Sequence
from pathlib import Path
from threading import Event

import numpy as np
import torch
from torch import Tensor, nn

from .decode import MOST_PIXELS
from .decoders import decode
from .pictures import Image, Pictures, Piece
from .processor import ImageProcessor
from .store import Recent

_CACHE_BYTES = 1 << 28
# Values of the vision tower's inputs that are computed together, which bounds its memory.
_BATCH_VALUES = 1 << 22


def vision_of(base: nn.Module, folder: Path, processor: Path | None = None) -> "Vision":
    """`base`: the model without its output layer. `processor`: the folder of the image processor, if it is not the model's
    own. Raises UserMistake if the processor cannot be used."""
    tile = getattr(base, "image_seq_len", None)
    return Vision(base, ImageProcessor(folder, processor or folder, base.config, tile))


class Vision:
    """Computes the features of an image once. If the vision part is trained, they are computed again for each version of
    its weights, and in each forward with a gradient."""

    def __init__(self, base: nn.Module, processor: ImageProcessor):
        """`base`: the transformers model without its output layer."""
        self.processor = processor
        self.most_pixels = MOST_PIXELS
        self.version: Hashable = None
        """Identifies the current weights of the vision part; None if they are not trained."""
        self.counters = {"images/features_computed": 0, "images/features_reused": 0}
        self._base = base
        self._accepted = set(inspect.signature(base.get_image_features).parameters)
        self.sees_ahead = "token_type_ids" in inspect.signature(base.forward).parameters
        """Whether the parts of an image attend to each other in both directions."""
        self._inputs: Recent[dict[str, Tensor]] = Recent(_CACHE_BYTES)
        self._features: Recent[Tensor] = Recent(_CACHE_BYTES)

    def info(self) -> dict[str, object]:
        """The placeholder that a chat template writes for an image."""
        processor = self.processor
        family = self._base.config.model_type
        return {"placeholder": processor.token, "placeholder_id": processor.token_id, "family": family}

    def read(self, hash: str, encoded: bytes, stop: Event | None = None) -> Image:
        """Decodes and processes an image. Raises UnusableImage, and Stopped when another thread sets `stop`."""
        picture = decode(encoded, self.most_pixels, stop)
        inputs, tokens = self.processor(picture)
        places = np.flatnonzero(tokens == self.processor.token_id)
        self._keep_inputs(hash, inputs)
        transparent = picture.info["transparent"]
        return Image(hash, encoded, tokens, places, inputs.get("image_grid_thw"), picture.size, transparent)

    def features(self, images: Sequence[Image]) -> Tensor:
        """The features `[K, D]` of these distinct images, concatenated."""
        if self.version is not None and torch.is_grad_enabled():
            self.counters["images/features_computed"] += len(images)
            return torch.cat(self.compute(images))
        found = {image.hash: self._features.get((self.version, image.hash)) for image in images}
        missing = [image for image in images if found[image.hash] is None]
        self.counters["images/features_computed"] += len(missing)
        self.counters["images/features_reused"] += len(images) - len(missing)
        with torch.no_grad():
            for image, value in zip(missing, self.compute(missing)):
                found[image.hash] = value
                self._features.put((self.version, image.hash), value, value.nbytes)
        return torch.cat([found[image.hash] for image in images])

    def row_positions(self, pieces: Sequence[Piece], positions: Tensor) -> Tensor | None:
        """The positions `[3, T]` of a row's tokens, from their indices `[T]` in their sequences. None if they are the same."""
        if not hasattr(self._base, "get_rope_index"):
            return None
        found = positions.expand(3, -1).clone()
        for piece in pieces:
            own = self.positions(piece.ids, piece.pictures)[:, piece.begin : piece.end]
            found[:, piece.start : piece.start + own.shape[1]] = own.to(found.device)
        return found

    def since(self, pieces: Sequence[Piece], positions: Tensor) -> Tensor:
        """AttentionContext.see_ahead's `[T]` of a row that does not divide images. positions `[T]`: of its tokens."""
        found = positions.clone()
        for piece in pieces:
            for picture in piece.pictures:
                for run in np.split(picture.image.places, np.flatnonzero(np.diff(picture.image.places) > 1) + 1):
                    first = picture.at + int(run[0])
                    if piece.begin <= first < piece.end:
                        start = first - piece.begin + piece.start
                        found[start : start + len(run)] = first
        return found

    def shift(self, ids: np.ndarray, pictures: Pictures) -> int:
        """The offset that is added to the positions of the text after this sequence."""
        own = self.positions(ids, pictures)
        return 0 if own is None else int(own.max()) + 1 - len(ids)

    def positions(self, ids: np.ndarray, pictures: Pictures) -> Tensor | None:
        """The positions `[3, L]` in time, height and width; None if this model numbers all tokens in order."""
        if not pictures or not hasattr(self._base, "get_rope_index"):
            return None
        kinds = np.zeros(len(ids), np.int64)
        for picture in pictures:
            kinds[picture.at + picture.image.places] = 1
        grids = torch.cat([picture.image.grid for picture in pictures])
        tokens = torch.from_numpy(ids.astype(np.int64))
        found, _ = self._base.get_rope_index(tokens[None], torch.from_numpy(kinds)[None], image_grid_thw=grids)
        return found[:, 0]

    def inputs(self, image: Image) -> dict[str, Tensor]:
        """The inputs of the vision part, on the CPU."""
        held = self._inputs.get(image.hash)
        if held is None:
            held, _ = self.processor(decode(image.encoded, self.most_pixels))
            self._keep_inputs(image.hash, held)
        return {name: value for name, value in held.items() if name in self._accepted}

    def _keep_inputs(self, hash: str, inputs: dict[str, Tensor]) -> None:
        self._inputs.put(hash, inputs, sum(value.nbytes for value in inputs.values()))

    def compute(self, images: Sequence[Image]) -> list[Tensor]:
        """Computes the features `[n, D]` of each image, followed by those that deeper layers add, if there are any. Images whose inputs have the same shapes are computed together."""
        batches: list[list[tuple[int, dict[str, Tensor]]]] = []
        open_: dict[tuple, int] = {}
        for i, image in enumerate(images):
            inputs = self.inputs(image)
            shape = tuple((name, value.shape[1:]) for name, value in inputs.items())
            place = open_.get(shape)
            if place is None or sum(_values(one) for _, one in batches[place]) > _BATCH_VALUES:
                open_[shape] = place = len(batches)
                batches.append([])
            batches[place].append((i, inputs))
        found: list[Tensor] = [torch.empty(0)] * len(images)
        device = next(self._base.parameters()).device
        for batch in batches:
            joined = {name: torch.cat([one[name] for _, one in batch]).to(device) for name in batch[0][1]}
            output = self._base.get_image_features(**joined, return_dict=True)
            values = output.pooler_output
            deep = getattr(output, "deepstack_features", None)
            if isinstance(values, Tensor):  # older versions of transformers do not divide tiles by image
                values = values.flatten(0, -2).split([len(images[i].places) for i, _ in batch])
            values = [value.flatten(0, -2) for value in values]
            if deep is not None:
                sizes = [len(value) for value in values]
                layers = [layer if isinstance(layer, Tensor) else torch.cat(layer) for layer in deep]
                parts = [layer.flatten(0, -2).split(sizes) for layer in layers]
                values = [torch.cat(each, -1) for each in zip(values, *parts, strict=True)]
            for (i, _), value in zip(batch, values, strict=True):
                found[i] = value
        return found


def _values(inputs: dict[str, Tensor]) -> int:
    return sum(value.numel() for value in inputs.values())
