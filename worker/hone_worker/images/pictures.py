"""Images in sequences of tokens, and the places of their features in a row."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import UserMistake


@dataclass(frozen=True, eq=False)
class Image:
    """An image that the worker has stored."""

    hash: str
    encoded: bytes
    tokens: np.ndarray
    """int32, the tokens of the image in a sequence."""
    places: np.ndarray
    """The indices of the tokens that are replaced by features."""
    grid: Tensor | None
    """`[1, 3]`: the patches of the image in time, height and width, for models whose positions depend on them."""
    size: tuple[int, int]
    """Width and height of the picture."""
    transparent: bool
    """Whether the file has transparent pixels, which are blended with white."""


@dataclass(frozen=True)
class Picture:
    """An image at a place of a sequence."""

    at: int
    image: Image

    @property
    def end(self) -> int:
        return self.at + len(self.image.tokens)


Pictures = tuple[Picture, ...]
"""The images of one sequence, in order."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Tokens `begin:end` of a sequence, at position `start` of a row."""

    ids: np.ndarray
    """`[L]`, the tokens of the whole sequence."""
    pictures: Pictures
    begin: int
    end: int
    start: int


@dataclass(frozen=True)
class Placed:
    """The images of one row."""

    images: tuple[Image, ...]
    """The images, each once."""
    places: Tensor
    """`[K]`, the positions in the row that are replaced."""
    features: Tensor
    """`[K]`, for each position the row of the images' concatenated features."""


def place(pieces: Sequence[Piece], device: torch.device) -> Placed | None:
    """The images of a row that contains these pieces; None without images."""
    first: dict[str, int] = {}
    images: list[Image] = []
    places: list[np.ndarray] = []
    features: list[np.ndarray] = []
    total = 0
    for piece in pieces:
        for picture in piece.pictures:
            inside = picture.at + picture.image.places
            rows = np.flatnonzero((inside >= piece.begin) & (inside < piece.end))
            if len(rows) == 0:
                continue
            image = picture.image
            if image.hash not in first:
                first[image.hash] = total
                total += len(image.places)
                images.append(image)
            places.append(inside[rows] - piece.begin + piece.start)
            features.append(first[image.hash] + rows)
    if not images:
        return None
    both = (torch.from_numpy(np.concatenate(part)).to(device) for part in (places, features))
    return Placed(tuple(images), *both)


def find_pictures(
    ranges: np.ndarray, images: Sequence[Image], tokens: np.ndarray, offsets: np.ndarray
) -> list[Pictures]:
    """The pictures of each sequence. `ranges` `[M, 3]`: sequence, first token, length of each of the M `images`.
    Raises UserMistake if they do not fit the sequences."""
    if ranges.shape != (len(images), 3):
        raise UserMistake(f"{len(images)} images, but {len(ranges)} ranges")
    found: list[list[Picture]] = [[] for _ in range(len(offsets) - 1)]
    for (s, at, length), image in zip(ranges.tolist(), images):
        if not 0 <= s < len(found):
            raise UserMistake(f"an image is in sequence {s} of {len(found)}")
        ids = tokens[offsets[s] : offsets[s + 1]]
        earliest = found[s][-1].end if found[s] else 0
        if at < earliest or length != len(image.tokens) or not np.array_equal(ids[at : at + length], image.tokens):
            raise UserMistake(
                f"sequence {s} does not have the {len(image.tokens)} tokens of image {image.hash[:12]} at {at}",
                "render the prompt with the tokens that this model's image processor gives",
            )
        found[s].append(Picture(at, image))
    return [tuple(pictures) for pictures in found]
