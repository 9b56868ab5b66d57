"""Images: stored when the trainer sends them, found by hash in later messages, and placed in sequences of tokens and in rows."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from threading import Event, Lock
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..channel import Message
from ..errors import UnusableImage, UserMistake


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


Value = TypeVar("Value")


class Recent(Generic[Value]):
    """A cache with a limit in bytes. Drops the least recently used values, but never the newest one. Several threads may use it."""

    def __init__(self, budget: int):
        self._budget = budget
        self._held: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self.bytes = 0
        self._lock = Lock()

    def put(self, key: Hashable, value: Value, size: int) -> None:
        with self._lock:
            if key in self._held:
                self.bytes -= self._held.pop(key)[1]
            self._held[key] = (value, size)
            self.bytes += size
            while self.bytes > self._budget and len(self._held) > 1:
                self.bytes -= self._held.popitem(last=False)[1][1]

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]


class MissingMedia(Exception):
    """The worker does not have images, or has dropped them. The trainer sends them again."""

    def __init__(self, hashes: list[str]):
        super().__init__(f"the worker does not have {len(hashes)} of the images")
        self.hashes = hashes


class ImageStore:
    """Images by hash. A running sample keeps a reference to its images, even if the store drops them."""

    def __init__(self, budget: int = 1 << 30):
        self._images: Recent[Image] = Recent(budget)

    def add(self, image: Image) -> None:
        self._images.put(image.hash, image, len(image.encoded))

    def get(self, hash: str) -> Image | None:
        return self._images.get(hash)

    def find(self, hashes: Sequence[str]) -> list[Image]:
        """The images of these hashes, in order. Raises MissingMedia."""
        found = {hash: self._images.get(hash) for hash in hashes}
        if missing := [hash for hash, image in found.items() if image is None]:
            raise MissingMedia(missing)
        return [found[hash] for hash in hashes]


Read = Callable[[str, bytes, Event | None], Image]
"""(hash, the bytes of a file, an event that stops the work) -> the image."""


class Media:
    """The images that a worker has stored."""

    def __init__(self) -> None:
        self._images = ImageStore()

    def put(
        self, message: Message, read: Read, stop: Event | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The answer to put_media. `read`: Vision.read. Raises Stopped when another thread sets `stop`."""
        encoded, offsets = message.arrays["bytes"], message.arrays["offsets"].tolist()
        described: list[dict[str, Any]] = []
        tokens: list[np.ndarray] = []
        for hash, begin, end in zip(message.header["hashes"], offsets, offsets[1:]):
            try:
                image = self._images.get(hash) or read(hash, encoded[begin:end].tobytes(), stop)
            except UnusableImage as unusable:
                described.append({"error": str(unusable)})
                tokens.append(np.empty(0, np.int32))
                continue
            self._images.add(image)
            width, height = image.size
            described.append({"width": width, "height": height, "transparent": image.transparent})
            tokens.append(image.tokens)
        ends = np.cumsum([0, *map(len, tokens)]).astype(np.int32)
        return {"media": described}, {"tokens": np.concatenate([ends[:0], *tokens]), "offsets": ends}

    def pictures(self, message: Message) -> list[Pictures] | None:
        """The images of each sequence of a message; None without images. Raises MissingMedia if images are not stored, and
        UserMistake if they do not fit the sequences."""
        hashes, arrays = message.header.get("media"), message.arrays
        if not hashes:
            return None
        return find_pictures(arrays["media_ranges"], self._images.find(hashes), arrays["tokens"], arrays["offsets"])
