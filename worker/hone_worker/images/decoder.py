"""Decodes PNG and JPEG files in child processes, `python -m hone_worker.images.decoder`: a file that takes too long, needs too much
memory or crashes a decoder fails alone. Imports nothing slow.

Each worker has up to two. An image may take 10 s of processor time, enforced by the kernel (`setitimer`), and 2 GiB of address space: the
largest photo needs 1.5 s and less than 1 GiB, and the slowest file within the limits of src/images/images.ts 2.3 s. The one-process worker
answers `put_media` from another thread, so samples continue. All environments pin the same Pillow: 12 and 13 resize differently if one side
grows and the other shrinks (noise of 640x480 to 644x476: 31% of the values differ)."""

import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from threading import BoundedSemaphore, Event
from typing import Any

from PIL import Image, ImageOps

from ..errors import RunFailure, Stopped, UnusableImage

# How a child decodes. Raises UnusableImage for every file that cannot be used.

MOST_PIXELS = 1 << 25
_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
Image.MAX_IMAGE_PIXELS = None  # open_image has its own limit


def open_image(encoded: bytes, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """The image in RGB, rotated as its EXIF data says, on white. `info["transparent"]`: white is visible through it. The
    size is checked before pixels are decoded."""
    try:
        image = Image.open(BytesIO(encoded), formats=["PNG", "JPEG"])
    except Exception:  # noqa: BLE001 - damaged files raise errors of many classes
        known = encoded.startswith(_SIGNATURES)
        reason = "its header is damaged" if known else f"its {len(encoded)} bytes are not a PNG or JPEG file"
        raise UnusableImage(reason) from None
    if image.width * image.height > most_pixels:
        raise UnusableImage(f"it has {image.width} x {image.height} pixels; the limit is {most_pixels} in all")
    # The further pictures of a camera's JPEG (MPO) are previews and maps of depth or brightness.
    if image.format == "PNG" and image.n_frames > 1:
        raise UnusableImage(f"it is animated, with {image.n_frames} frames; only still images are supported")
    if image.mode.startswith("I") or image.mode == "F":
        raise UnusableImage("it has 16 bits per channel; convert it to 8")
    try:
        upright = ImageOps.exif_transpose(image)
        transparent = _is_transparent(upright)
        picture = _on_white(upright) if transparent else upright.convert("RGB")
        picture.info["transparent"] = transparent
        return picture
    except Exception as error:  # noqa: BLE001
        why = "it needs too much memory" if isinstance(error, MemoryError) else error or type(error).__name__
        raise UnusableImage(f"it cannot be decoded: {why}") from None


def _is_transparent(image: Image.Image) -> bool:
    """A transparent color of an RGB image does not count, as in vLLM."""
    return image.mode != "RGB" and image.has_transparency_data and image.convert("RGBA").getextrema()[3][0] < 255


def _on_white(image: Image.Image) -> Image.Image:
    """As transformers' image processors and vLLM do."""
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


# The parent starts the children, and sends each file to one of them.

CPU_SECONDS = 10.0
"""Processor time for one image, about five times what the largest photo needs."""
_REQUEST = struct.Struct("<QQd")
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
            answer, pixels = _ask(child, _REQUEST.pack(len(encoded), most_pixels, cpu_seconds) + encoded, stop)
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


# A child decodes the files that it gets, until the input ends.

# The largest photos need less than 1 GiB.
_MEMORY = 2 << 30


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends Ctrl-C to every process
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while start := source.read(_REQUEST.size):
        length, most_pixels, seconds = _REQUEST.unpack(start)
        answer, pixels = _decode(source.read(length), most_pixels, seconds)
        target.write(json.dumps({**answer, "bytes": len(pixels)}).encode() + b"\n" + pixels)
        target.flush()


def _decode(encoded: bytes, most_pixels: int, seconds: float) -> tuple[dict[str, Any], bytes]:
    signal.setitimer(signal.ITIMER_PROF, seconds)  # the kernel then ends this process with SIGPROF
    try:
        picture = open_image(encoded, most_pixels)
        return {"size": picture.size, "transparent": picture.info["transparent"]}, picture.tobytes()
    except UnusableImage as unusable:
        return {"error": str(unusable)}, b""
    except MemoryError:
        return {"error": "it cannot be decoded: it needs too much memory"}, b""
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
