"""Frames over the standard input and output of a process that speaks the protocol (worker/PROTOCOL.md), without their meaning; the
process ends with its parent. Imports nothing slow.

A reader thread takes frames off the input as they arrive, so that the other side never blocks on a busy
worker. Replies to the worker's own questions (`gradient`, `cancel`) have a queue apart from the requests."""

import json
import math
import os
import queue
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NoReturn

import numpy as np

DTYPES = {"i16": np.dtype("<i2"), "i32": np.dtype("<i4"), "f32": np.dtype("<f4"), "u8": np.dtype("u1"), "i64": np.dtype("<i8")}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNMENT = 8
REPLIES = frozenset({"gradient", "cancel"})
# A longer header means that the stream does not consist of frames.
MAX_HEADER_BYTES = 1 << 26
MAX_PAYLOAD_BYTES = (1 << 32) - 1


class BrokenStream(Exception):
    """The input is not a sequence of whole frames. There is no way to find the next one."""


@dataclass
class Message:
    """`arrays` are read-only views into the payload."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def id(self) -> int:
        return self.header["id"]

    @property
    def op(self) -> str:
        return self.header["op"]


def plain(value: Any) -> Any:
    """The value in JSON's types: numpy scalars become numbers, NaN and infinities become their names."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def encode(header: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> list[bytes | memoryview]:
    """The pieces of one frame, in order, without copying arrays."""
    pieces: list[bytes | memoryview] = []
    described = []
    payload = 0
    for name, array in (arrays or {}).items():
        dtype = np.asarray(array).dtype.newbyteorder("<")
        if dtype not in NAMES:
            raise TypeError(f"array {name!r} is {dtype}; a frame holds {', '.join(DTYPES)}")
        array = np.asarray(array, dtype, order="C")
        described.append({"name": name, "dtype": NAMES[dtype], "shape": list(array.shape)})
        padding = -array.nbytes % ALIGNMENT
        payload += array.nbytes + padding
        pieces += [memoryview(array.reshape(-1).view(np.uint8)), bytes(padding)]
    if payload > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a message of {payload} bytes does not fit in a frame")
    if described:
        header = {**header, "arrays": described}
    text = json.dumps(plain(header), allow_nan=False, separators=(",", ":")).encode()
    return [struct.pack("<II", len(text), payload) + text, *pieces]


def decode(text: bytes, payload: bytes) -> Message:
    """The message of a frame. Raises BrokenStream if header and payload do not match."""
    try:
        header = json.loads(text)
        described = header.pop("arrays", [])
        arrays = {}
        begin = 0
        for entry in described:
            dtype = DTYPES[entry["dtype"]]
            count = math.prod(entry["shape"])
            arrays[entry["name"]] = np.frombuffer(payload, dtype, count, begin).reshape(entry["shape"])
            begin += count * dtype.itemsize
            begin += -begin % ALIGNMENT
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenStream(f"a message cannot be read: {error}") from error
    return Message(header, arrays)


class Channel:
    """The reader thread calls `on_end` when the input ends or is broken."""

    def __init__(self, source: BinaryIO, target: int, on_end: Callable[[BrokenStream | None], None]):
        self._source = source
        self._target = target
        self._on_end = on_end
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, header: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        """Writes one frame. Blocks while the pipe is full."""
        pieces = encode(header, arrays)
        with self._lock:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[os.write(self._target, view) :]

    def receive(self, wait: bool) -> Message | None:
        """The next request. Without `wait`, None if no request has arrived."""
        try:
            return self._requests.get(block=wait)
        except queue.Empty:
            return None

    def ask(self, request: int, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Message:
        """Sends an event of `request` and waits for its reply; requests that arrive meanwhile are queued."""
        self.send({"id": request, **header}, arrays)
        while True:
            reply = self._replies.get()
            if reply.id == request:
                return reply
            print(f"dropped a late {reply.op} for request {reply.id}", file=sys.stderr)

    def _read(self) -> None:
        broken: BrokenStream | None = None
        try:
            while (message := read_message(self._source)) is not None:
                if not isinstance(message.header.get("id"), int) or not isinstance(message.header.get("op"), str):
                    raise BrokenStream(f"a message has no id or op: {message.header}")
                (self._replies if message.header.get("op") in REPLIES else self._requests).put(message)
        except BrokenStream as error:
            broken = error
        self._on_end(broken)


def read_message(source: BinaryIO) -> Message | None:
    """The next frame; None at the end. Raises BrokenStream if what comes is not a frame."""
    start = source.read(8)
    if not start:
        return None
    if len(start) < 8:
        raise BrokenStream("the input ended within a message")
    header_bytes, payload_bytes = struct.unpack("<II", start)
    if header_bytes > MAX_HEADER_BYTES:
        raise BrokenStream("the input contains something that is not a message")
    text, payload = source.read(header_bytes), source.read(payload_bytes)
    if len(text) < header_bytes or len(payload) < payload_bytes:
        raise BrokenStream("the input ended within a message")
    return decode(text, payload)


# The pipes of the process.


def open_channel(on_end: Callable[[Exception | None], None] | None = None) -> Channel:
    """Reserves standard input and output for the protocol: a library's prints go to the log, and its reads
    get nothing. Must run before anything else is imported. `on_end` ends the process when the input has ended."""
    source, target = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    # The terminal sends Ctrl-C to every process; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    die_with_parent()
    channel = Channel(os.fdopen(source, "rb", buffering=1 << 20), target, on_end or _input_ended)
    channel.start()
    return channel


def serve(run: Callable[[Channel], None]) -> None:
    """A worker's main program."""
    channel = open_channel()
    try:
        run(channel)
    except SystemExit:
        sys.stderr.flush()
        os._exit(0)  # unloading torch would take seconds


def _input_ended(broken: Exception | None) -> None:
    """Called by the reader thread. Does not wait for the main thread, which may be deep in a matrix
    product."""
    if broken is not None:
        print(f"hone_worker: {broken}", file=sys.stderr, flush=True)
    os._exit(0 if broken is None else 1)


# The process ends when the process that started it has ended, even if that was killed.

_POLL_SECONDS = 0.25


def die_with_parent() -> None:
    """`HONE_PARENT_PID` names the process to end with; the default is the direct parent.

    On Linux the kernel kills this process even while a library holds the interpreter's lock, but only if the
    direct parent ends after this call. So a thread watches as well."""
    parent = int(os.environ.get("HONE_PARENT_PID") or os.getppid())
    if sys.platform == "linux":
        end_with_parent()
    wait = _death_of(parent)

    def watch() -> None:
        wait()
        _parent_ended(parent)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def end_with_parent() -> None:
    """Asks the kernel of Linux to kill this process when the thread that started it ends."""
    import ctypes

    set_parent_death_signal = 1
    if ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL) != 0:
        print("prctl failed: only a thread watches the worker's parent", file=sys.stderr)


def _death_of(pid: int) -> Callable[[], object]:
    """A function that returns when the process has ended. Ends this process if it already has."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        _parent_ended(pid)
    except (AttributeError, OSError):  # not Linux, or a system that forbids the call
        return lambda: _poll(pid)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    if poll.poll(0):
        _parent_ended(pid)
    return poll.poll


def _poll(pid: int) -> None:
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        except PermissionError:
            pass
        time.sleep(_POLL_SECONDS)


def _parent_ended(pid: int) -> NoReturn:
    print(f"hone_worker: process {pid}, which started this worker, has ended", file=sys.stderr, flush=True)
    os._exit(1)
