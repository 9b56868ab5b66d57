"""Frames: round trips, broken streams, and replies that reach the caller that asked."""

from __future__ import annotations

import io
import math
import os
import queue
import threading

import numpy as np
import pytest
from hone_worker.channel import BrokenStream, Channel, decode, encode, plain


def frame(header: dict, arrays: dict | None = None) -> bytes:
    return b"".join(bytes(piece) for piece in encode(header, arrays))


def unframe(data: bytes) -> tuple[dict, dict]:
    header_bytes = int.from_bytes(data[:4], "little")
    payload_bytes = int.from_bytes(data[4:8], "little")
    assert len(data) == 8 + header_bytes + payload_bytes
    message = decode(data[8 : 8 + header_bytes], data[8 + header_bytes :])
    return message.header, message.arrays


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"a": np.arange(3, dtype=np.int32)},
        {"a": np.zeros(0, np.float32), "b": np.zeros((0, 4), np.int32), "c": np.ones((), np.int64)},
        {
            "a": np.array([1, 255, 0], np.uint8),
            "b": np.array([[1, -(2**62)], [0, 5]], np.int64),
            "c": np.float32([1.5]),
        },
        {"nan": np.array([np.nan, np.inf, -np.inf], np.float32)},
        {"strided": np.arange(20, dtype=np.int32).reshape(4, 5)[::2, 1:3], "big": np.arange(3, dtype=">i4")},
    ],
    ids=str,
)
def test_arrays_survive(arrays: dict) -> None:
    header, found = unframe(frame({"id": 1, "op": "x", "text": "é\n"}, arrays))
    assert header == {"id": 1, "op": "x", "text": "é\n"}
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].shape == array.shape and not found[name].flags.writeable


def test_arrays_begin_at_multiples_of_eight() -> None:
    data = frame({"id": 1}, {"a": np.ones(3, np.uint8), "b": np.ones(1, np.int32)})
    assert data[-16:] == b"\1\1\1" + bytes(5) + b"\1\0\0\0" + bytes(4)


def test_numbers_that_json_lacks_travel_by_name() -> None:
    given = {
        "a": math.nan,
        "b": [math.inf, {"c": -math.inf}],
        "d": np.float32(0.5),
        "e": np.int64(3),
        "f": True,
        "g": None,
    }
    assert plain(given) == {
        "a": "NaN",
        "b": ["Infinity", {"c": "-Infinity"}],
        "d": 0.5,
        "e": 3,
        "f": True,
        "g": None,
    }


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match="'x' is float64"):
        encode({}, {"x": np.zeros(2)})


class Pair:
    """A channel, and the far ends of its pipes."""

    def __init__(self) -> None:
        read, self.feed = os.pipe()
        self.drain, write = os.pipe()
        self.ended: queue.Queue[BrokenStream | None] = queue.Queue()
        self.channel = Channel(os.fdopen(read, "rb"), write, self.ended.put)
        self.channel.start()

    def received(self) -> tuple[dict, dict]:
        with_start = os.read(self.drain, 1 << 16)
        return unframe(with_start)


def test_a_message_may_come_in_any_pieces() -> None:
    pair = Pair()
    data = frame({"id": 1, "op": "a"}, {"x": np.arange(5, dtype=np.int32)}) + frame({"id": 2, "op": "b"})
    for begin in range(0, len(data), 7):
        os.write(pair.feed, data[begin : begin + 7])
    first, second = pair.channel.receive(wait=True), pair.channel.receive(wait=True)
    assert (first.id, first.op, first.arrays["x"].tolist(), second.id) == (1, "a", [0, 1, 2, 3, 4], 2)
    assert pair.channel.receive(wait=False) is None
    os.close(pair.feed)
    assert pair.ended.get(timeout=5) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\1\2",
        frame({"id": 1, "op": "a"})[:-1],
        b"GET / HT" + bytes(100),
        frame({"op": "a"}),
        frame({"id": 1}),
        b"\2\0\0\0\0\0\0\0[]",
        b"\1\0\0\0\0\0\0\0{",
        frame({"id": 1, "op": "a", "arrays": [{"name": "x", "dtype": "i32", "shape": [4]}]}),
        frame({"id": 1, "op": "a", "arrays": [{"name": "x", "dtype": "f64", "shape": []}]}),
    ],
)
def test_broken_streams_are_told(data: bytes) -> None:
    pair = Pair()
    os.write(pair.feed, data)
    os.close(pair.feed)
    assert isinstance(pair.ended.get(timeout=5), BrokenStream)


def test_a_reply_passes_the_requests_that_came_before_it() -> None:
    pair = Pair()
    os.write(pair.feed, frame({"id": 8, "op": "gradient"}))
    os.write(
        pair.feed,
        frame({"id": 9, "op": "sample"}) + frame({"id": 7, "op": "gradient"}, {"g": np.float32([2])}),
    )
    reply = pair.channel.ask(7, {"event": "outputs"}, {"v": np.float32([1])})
    assert (reply.id, reply.op, reply.arrays["g"].tolist()) == (7, "gradient", [2.0])
    assert pair.received()[0] == {"id": 7, "event": "outputs"}
    assert pair.channel.receive(wait=True).op == "sample"


def test_writers_do_not_mix_their_frames() -> None:
    pair = Pair()
    payload = np.arange(50_000, dtype=np.int32)
    writers = [
        threading.Thread(target=pair.channel.send, args=({"id": n}, {"x": payload + n})) for n in range(8)
    ]
    for writer in writers:
        writer.start()
    with io.FileIO(pair.drain) as raw, io.BufferedReader(raw) as reader:
        seen = set()
        for _ in writers:
            start = reader.read(8)
            sizes = int.from_bytes(start[:4], "little"), int.from_bytes(start[4:], "little")
            header, arrays = unframe(start + reader.read(sum(sizes)))
            np.testing.assert_array_equal(arrays["x"], payload + header["id"])
            seen.add(header["id"])
    assert seen == set(range(8))
