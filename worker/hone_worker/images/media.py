"""The images of messages: put_media stores them, and later messages refer to them by hash."""

from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np

from ..channel import Message
from ..errors import UnusableImage
from .pictures import Pictures, find_pictures
from .store import ImageStore

if TYPE_CHECKING:
    from .vision import Vision


class Media:
    """The images that a worker has stored."""

    def __init__(self) -> None:
        self._images = ImageStore()

    def put(
        self, message: Message, vision: "Vision", stop: Event | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The answer to put_media. Raises Stopped when another thread sets `stop`."""
        encoded, offsets = message.arrays["bytes"], message.arrays["offsets"].tolist()
        described: list[dict[str, Any]] = []
        tokens: list[np.ndarray] = []
        for hash, begin, end in zip(message.header["hashes"], offsets, offsets[1:]):
            try:
                image = self._images.get(hash) or vision.read(hash, encoded[begin:end].tobytes(), stop)
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
