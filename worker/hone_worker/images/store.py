"""Caches with a limit in bytes: the images that the trainer sent, and the values computed from them."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from threading import Lock
from typing import Generic, TypeVar

from .pictures import Image

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Drops the least recently used values, but never the newest one. Several threads may use it."""

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
