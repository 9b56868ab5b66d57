"""The vision part of a model: images -> features of their placeholders, and positions of tokens around images. When a model is
loaded, a probe checks the placement of its features against transformers' own forward."""

import inspect
from collections.abc import Callable, Hashable, Sequence
from io import BytesIO
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor, nn

from ..errors import UserMistake
from .decoder import MOST_PIXELS, decode
from .pictures import Image, Picture, Pictures, Piece, Recent
from .processor import ImageProcessor

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
