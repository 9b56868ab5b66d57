"""Decodes images in child processes: a file that takes too long, needs too much memory or crashes a decoder fails alone."""

import json
import os
import select
import signal
import struct
import subprocess
import sys
from pathlib import Path
from threading import BoundedSemaphore, Event

from PIL import Image

from ..errors import RunFailure, Stopped, UnusableImage
from .decode import MOST_PIXELS

CPU_SECONDS = 10.0
"""Processor time for one image, about five times what the largest photo needs."""
REQUEST = struct.Struct("<QQd")
"""Before the file: its length, the limit of pixels, the processor time in seconds."""

_CHILDREN = 2
_free = BoundedSemaphore(_CHILDREN)
_idle: list[subprocess.Popen] = []


def decode(
    encoded: bytes, most_pixels: int = MOST_PIXELS, stop: Event | None = None, cpu_seconds: float = CPU_SECONDS
) -> Image.Image:
    """As `open_image`, in a child process. Several threads may call it; the others wait while all children are busy.
    Raises UnusableImage, RunFailure, and Stopped when another thread sets `stop`."""
    while not _free.acquire(timeout=0.05):
        _check(stop)
    try:
        child = _take()
        try:
            answer, pixels = _ask(child, REQUEST.pack(len(encoded), most_pixels, cpu_seconds) + encoded, stop)
        except BaseException:
            child.kill()
            child.communicate()
            raise
        if answer is None:
            raise _ended(child, cpu_seconds)
        _idle.append(child)
    finally:
        _free.release()
    if "error" in answer:
        raise UnusableImage(answer["error"])
    picture = Image.frombytes("RGB", tuple(answer["size"]), pixels)
    picture.info["transparent"] = answer["transparent"]
    return picture


def _take() -> subprocess.Popen:
    while _idle:
        child = _idle.pop()
        if child.poll() is None:
            return child
    return _start()


def _start() -> subprocess.Popen:
    """It ends with this process, whose pipe it reads."""
    path = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "hone_worker.images.decoder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
    )


def _ask(child: subprocess.Popen, request: bytes, stop: Event | None) -> tuple[dict | None, bytes]:
    """The answer and its pixels; None if the child ended."""
    try:
        child.stdin.write(request)
        child.stdin.flush()
    except BrokenPipeError:
        return None, b""
    poll = select.poll()
    poll.register(child.stdout, select.POLLIN)
    while not poll.poll(50):
        _check(stop)
    line = child.stdout.readline()
    answer = json.loads(line) if line.endswith(b"\n") else {"bytes": 1}
    pixels = child.stdout.read(answer["bytes"])
    return (answer if len(pixels) == answer["bytes"] else None), pixels


def _check(stop: Event | None) -> None:
    if stop is not None and stop.is_set():
        raise Stopped


def _ended(child: subprocess.Popen, cpu_seconds: float) -> Exception:
    child.communicate()
    code = child.returncode
    if code == -signal.SIGPROF:
        return UnusableImage(f"decoding it takes more than {cpu_seconds:g} s of processor time")
    if code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL):
        return UnusableImage(f"it crashes the decoder ({signal.Signals(-code).name})")
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return RunFailure(f"the process that decodes images was ended {how}; the worker's log may say why")
