"""A worker process, and the other side of its protocol."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from hone_worker.channel import decode, encode

WORKER = Path(__file__).parent.parent


class Client:
    """Starts a worker and speaks to it."""

    def __init__(self, module: str = "hone_worker", **environment: str):
        self.process = subprocess.Popen(
            [os.environ.get("HONE_WARM_PYTHON", sys.executable), "-m", module],  # conftest.py
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(WORKER), "OMP_NUM_THREADS": "1", **environment},
            start_new_session=True,
        )
        self._last = 0

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def send(
        self, op: str, arrays: dict[str, Any] | None = None, id: int | None = None, **fields: Any
    ) -> int:
        """Sends a message and gives its id."""
        if id is None:
            self._last += 1
            id = self._last
        self.raw(b"".join(bytes(piece) for piece in encode({"id": id, "op": op, **fields}, arrays)))
        return id

    def raw(self, frame: bytes) -> None:
        self.process.stdin.write(frame)
        self.process.stdin.flush()

    def receive(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The next message from the worker."""
        header_bytes, payload_bytes = struct.unpack("<II", self._read(8))
        message = decode(self._read(header_bytes), self._read(payload_bytes))
        json.dumps(message.header, allow_nan=False)
        return message.header, message.arrays

    def answer(self, id: int) -> tuple[dict[str, Any], dict[str, np.ndarray], list[Any]]:
        """The answer to a message, and the events before it; nothing else may come."""
        events = []
        while True:
            header, arrays = self.receive()
            assert header["id"] == id, header
            if "event" not in header:
                return header, arrays, events
            events.append((header, arrays))

    def call(self, op: str, arrays: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        """Sends a message that has no events of interest; gives its answer."""
        header, _, _ = self.answer(self.send(op, arrays, **fields))
        return header

    def sample(
        self, policy: int, prompts: list[list[int]], requests: list[dict[str, Any]], **fields: Any
    ) -> int:
        return self.send("sample", ragged(prompts), policy=policy, requests=requests, **fields)

    def _read(self, count: int) -> bytes:
        data = self.process.stdout.read(count)
        if len(data) < count:
            self.process.wait()
            raise EOFError(self.process.stderr.read().decode())
        return data


def ragged(sequences: list[list[int]]) -> dict[str, np.ndarray]:
    """The arrays `tokens` and `offsets`."""
    offsets = np.cumsum([0, *map(len, sequences)])
    flat = [token for sequence in sequences for token in sequence]
    return {"tokens": np.array(flat, np.int32), "offsets": offsets.astype(np.int32)}


def finite(value: Any) -> float:
    """A number out of a header, which may travel by its name."""
    return {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.get(value, value)
